"""The suites on a cluster that is given: the same cases, by a kubeconfig, as on a real one.

The stand-ins run in a process of their own here, and are reached like any cluster.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from tests.support.given_cluster import IMAGE, KUBECONFIG, ThroughGateway, given_cluster
from tests.support.helm import ROOT
from tests.support.kube_api import serve
from tests.support.processes import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(given_cluster() is not None, reason="it is about the stand-ins"),
]
SUITES = ["test_platform_contract.py", "test_knative_platform.py"]
CASES = "knative and (cold_start or preempted or nothing_can or deployment or refuses or killed)"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "tests.support.standin_server", str(file)]
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            asyncio.run(until(file.exists))
            yield file
        finally:
            server.terminate()


def test_the_same_cases_run_by_a_kubeconfig(kubeconfig: Path) -> None:
    given = {KUBECONFIG: str(kubeconfig), IMAGE: "registry.example.com/functions-test:1"}
    chosen = ["-k", CASES, *(f"tests/integration/{name}" for name in SUITES)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *chosen],
        env={**os.environ, **given},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "4 passed, 2 skipped" in last, done.stdout
    assert "needs the stand-in: rights are taken away" in done.stdout
    assert "needs the stand-in: nodes of a given cluster are not killed" in done.stdout


def test_through_the_gateway_a_request_keeps_its_name() -> None:
    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        request = Request(scope, receive)
        told = f"{request.headers['host']} {request.url.path}"
        await PlainTextResponse(told)(scope, receive, send)

    async def run() -> None:
        async with serve(app) as gateway:
            through = ThroughGateway(gateway)
            async with httpx.AsyncClient(transport=through) as client:
                answer = await client.get("http://fn-1.rlhf.svc.cluster.local/readyz")
                assert answer.text == "fn-1.rlhf.svc.cluster.local /readyz"

    asyncio.run(run())
