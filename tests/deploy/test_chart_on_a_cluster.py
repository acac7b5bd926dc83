"""The chart in a cluster that is given: installed, tested by its own test, a job, and taken away.

Everything else about the chart is shown without a cluster; Helm cannot install into the stand-in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.platforms.kube import PODS, SERVICES, Kube
from rlhfless.errors import UserError
from tests.support.given_cluster import (
    KUBECONFIG,
    VALUES,
    GivenCluster,
    configuration_of,
    execute,
    given_cluster,
)
from tests.support.helm import CHART, Helm

_there = given_cluster()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _there is None or not _there.values,
        reason=f"needs a cluster: {KUBECONFIG}, and the chart's values for it: {VALUES}",
    ),
]
RELEASE = "rlhfless-test"
LABELS = {"app.kubernetes.io/instance": RELEASE}
TIMEOUT = "15m"


@pytest.fixture(scope="module")
def own_helm(helm: Helm) -> Helm:
    """Where whoever runs it keeps credentials."""
    return Helm(helm.program, Path.home())


@pytest.fixture(scope="module")
def given(own_helm: Helm) -> Iterator[GivenCluster]:
    """With the chart in it."""
    cluster = given_cluster()
    assert cluster is not None
    there = ["--kubeconfig", cluster.kubeconfig, "--namespace", cluster.namespace]
    install = ["install", RELEASE, str(CHART), "--values", cluster.values]
    done = own_helm.run(*install, *there, "--wait", "--timeout", TIMEOUT)
    try:
        assert done.returncode == 0, done.stderr
        yield cluster
    finally:
        own_helm.run("uninstall", RELEASE, *there, "--wait", "--timeout", TIMEOUT)


def test_helm_test_passes(own_helm: Helm, given: GivenCluster) -> None:
    there = ["--kubeconfig", given.kubeconfig, "--namespace", given.namespace]
    done = own_helm.run("test", RELEASE, *there, "--timeout", TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_runs_and_leaves_nothing(given: GivenCluster) -> None:
    """By the command line in the controller's pod, as the notes have it."""

    async def run() -> None:
        configuration = await configuration_of(given)
        async with Kube(configuration) as kube:
            pods, _ = await kube.list(
                PODS, given.namespace, {**LABELS, "app.kubernetes.io/component": "controller"}
            )
            pod = pods[0]["metadata"]["name"]

            async def command(line: str) -> str:
                shell = ["sh", "-c", line]
                settings = await configuration_of(given)
                return await execute(settings, given.namespace, pod, "controller", shell)

            made = await command("rlhfless keys create --tenant default --name me --scope admin")
            key = next(word for word in made.split() if word.startswith("rlk_"))
            me = f"RLHFLESS_URL=http://127.0.0.1:8000 RLHFLESS_API_KEY={key}"
            job = "/opt/rlhfless/examples/quickstart.yaml --set training.steps=1 --watch"
            assert "succeeded: all steps done" in await command(f"{me} rlhfless submit {job}")
            logs = await command(f"{me} rlhfless logs quickstart")
            assert "checkpoint of step 1" in logs
            with contextlib.suppress(UserError):  # without Knative there is no such kind
                services, _ = await kube.list(SERVICES, given.namespace, LABELS)
                assert services == []

    asyncio.run(run())
