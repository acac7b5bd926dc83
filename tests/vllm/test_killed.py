"""A vLLM rollout function that is killed takes all its processes with it, and what it had streamed
is safe with whoever read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from functions.host import TOKEN_VARIABLE
from rlhfless.engines import EngineOptions
from rlhfless.frames import FrameReader, encode_request
from rlhfless.messages import AnyFrame, RolloutRequest
from tests.support.processes import command_of, lives
from tests.support.rollout import Outcome, make_prompts, make_request, make_tasks
from tests.support.vllm_models import make_model

pytestmark = pytest.mark.slow

START_S = 120.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Short, for sockets lie in it; and what vLLM leaves in its parent can be seen."""
    with tempfile.TemporaryDirectory(prefix="v-") as folder:
        yield Path(folder)


@pytest.fixture
def function(tmp_path: Path, start_vllm: object) -> Iterator[subprocess.Popen[bytes]]:
    del start_vllm  # vLLM is there
    options = EngineOptions(name="vllm", kv_cache_bytes=64 << 20)
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "functions.host", "--function", "rollout"),
            *("--socket", str(tmp_path / "f"), "--workdir", str(tmp_path / "w")),
            *("--engine", msgspec.json.encode(options).decode(), "--log", str(tmp_path / "log")),
        ],
        env={**os.environ, TOKEN_VARIABLE: "token"},
    )
    yield process
    process.kill()
    process.wait()


def client_of(tmp_path: Path, process: subprocess.Popen[bytes]) -> httpx.Client:
    give_up = time.monotonic() + START_S
    while not (tmp_path / "f").exists():
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < give_up
        time.sleep(0.05)
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(tmp_path / "f")),
        base_url="http://function",
        headers={"authorization": "Bearer token"},
        timeout=START_S,
    )


def frames_of(client: httpx.Client, request: RolloutRequest) -> Iterator[AnyFrame]:
    reader = FrameReader()
    with client.stream("POST", "/v1/rollout", content=encode_request(request)) as response:
        assert response.status_code == 200
        for chunk in response.iter_raw():
            yield from reader.feed(chunk)


def metrics(client: httpx.Client) -> dict[str, float]:
    text = client.get("/metrics").text
    return {
        sample.name + sample.labels.get("source", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def below(pid: int) -> set[int]:
    """All processes that it started, and they."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | below(child)
    return found


def test_nothing_is_left_of_a_killed_function_but_what_it_streamed(
    tmp_path: Path, function: subprocess.Popen[bytes]
) -> None:
    model = tmp_path / "model"
    make_model(0).save_pretrained(model)
    prompts = make_prompts([9, 30])
    request = make_request(model, prompts, make_tasks(2, 2, 480))
    outcome = Outcome([[] for _ in request.samples], [[] for _ in request.samples])
    with client_of(tmp_path, function) as client:
        processes: set[int] = set()
        with pytest.raises(httpx.TransportError):
            for frame in frames_of(client, request):
                outcome.add(frame, request)
                if not processes and all(len(tokens) > 10 for tokens in outcome.tokens):
                    told = metrics(client)
                    processes = below(function.pid)
                    os.kill(function.pid, signal.SIGKILL)
    assert told["rlhfless_engine_running"] == 4
    assert told["rlhfless_engine_ttft_seconds_count"] == 4
    assert told["rlhfless_engine_prompt_tokens_totalcomputed"] > 0
    assert 0 < told["rlhfless_engine_kv_usage"] < 1
    assert processes
    assert all(outcome.tokens)  # every one, each once and in its place, as ``add`` has seen
    give_up = time.monotonic() + 30
    while left := [pid for pid in processes if lives(pid)]:
        assert time.monotonic() < give_up, [command_of(pid) for pid in left]
        time.sleep(0.05)
    assert sorted(os.listdir(tmp_path)) == sorted(("f", "log", "model", "w"))
