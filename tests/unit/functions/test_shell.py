"""The shell over ASGI: what it admits, what it answers, and what it does when things end early."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from functions.context import CallContext
from functions.shell import create_app
from rlhfless.errors import CapacityError, TransientError, UserError
from rlhfless.messages import (
    Frame,
    Heartbeat,
    Problem,
    Progress,
    RewardDone,
    RolloutDone,
    RolloutRequest,
    Tokens,
)
from tests.support.shell import (
    REWARD,
    ROLLOUT,
    TOKEN,
    Echo,
    Gate,
    Service,
    counting,
    in_loop,
    raising,
    reward,
    rollout,
    until,
)

# --- admission ----------------------------------------------------------------------------------


@in_loop
async def test_a_call_is_answered_with_its_frames(tmp_path: Path) -> None:
    def handle(request: RolloutRequest, context: CallContext) -> Iterator[Frame]:
        assert context.remaining_s > 50
        yield Tokens(samples=[0], starts=[0], counts=[2], tokens=[5, 6], logprobs=b"", version=3)
        yield RolloutDone(generated_tokens=2)

    answer = await Service(Echo(rollout=handle)).ask(ROLLOUT, rollout(tmp_path))
    assert answer.status == 200
    assert [type(f) for f in answer.frames] == [Tokens, RolloutDone]


@in_loop
@pytest.mark.parametrize("token", ["", "the toke", "the token2", "THE TOKEN", "tökén"])
async def test_a_wrong_token_is_refused(tmp_path: Path, token: str) -> None:
    runs, handle = counting()
    answer = await Service(Echo(reward=handle)).ask(REWARD, reward(tmp_path), token)
    assert answer.status == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.problem["category"] == "user"
    assert runs == []


@in_loop
@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"{}", msgspec.msgpack.encode({"call": 3}), reward("/tmp")[:-1]],
    ids=["empty", "no msgpack", "JSON", "wrong type", "cut off"],
)
async def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    answer = await Service(Echo(reward=counting()[1])).ask(REWARD, body)
    assert answer.status == 422
    assert "RewardRequest" in answer.problem["detail"]


@in_loop
async def test_an_id_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    service = Service(Echo(reward=counting()[1]))
    for name in ("../other/0", "", "a//b", "/a"):
        answer = await service.ask(REWARD, reward(tmp_path, name))
        assert (answer.status, answer.problem["param"]) == (422, "call.id")


@in_loop
async def test_a_full_instance_refuses_and_has_room_again(tmp_path: Path) -> None:
    gate = Gate()
    service = Service(Echo(rollout=gate.handle))
    first = service.post(ROLLOUT, rollout(tmp_path, "a"))
    await first.until(Progress)
    second = await service.ask(ROLLOUT, rollout(tmp_path, "b"))
    assert (second.status, second.problem["category"]) == (503, "capacity")
    gate.open.set()
    await first.task
    third = await service.ask(ROLLOUT, rollout(tmp_path, "c"))
    assert isinstance(third.frames[-1], RolloutDone)


def test_a_function_without_a_token_is_not_made() -> None:
    with pytest.raises(UserError, match="token"):
        create_app("reward", Echo(), "")


# --- errors -------------------------------------------------------------------------------------


@in_loop
@pytest.mark.parametrize(
    ("error", "category", "words"),
    [
        (UserError("bad reward", param="rewards.0", hint="fix it"), "user", "bad reward"),
        (TransientError("lost the store"), "transient", "lost the store"),
        (CapacityError("full"), "capacity", "full"),
        (ValueError("a defect"), "internal", "ValueError: a defect"),
        (MemoryError(), "capacity", "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "capacity", "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "capacity", "no space left"),
        (
            RuntimeError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            ),
            "capacity",
            "no space left",
        ),
        (OSError(errno.EACCES, "Permission denied"), "internal", "Permission denied"),
        (SystemExit(3), "internal", "SystemExit"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_an_error_ends_the_stream_as_a_problem_of_its_family(
    tmp_path: Path, error: BaseException, category: str, words: str
) -> None:
    service = Service(Echo(rollout=raising(error), reward=raising(error)))
    streamed = await service.ask(ROLLOUT, rollout(tmp_path))
    assert [type(f) for f in streamed.frames] == [Progress, Problem]
    unary = await service.ask(REWARD, reward(tmp_path))
    assert [type(f) for f in unary.frames] == [Problem]
    for answer in (streamed, unary):
        assert answer.problem["category"] == category
        assert words in answer.problem["detail"]
    if isinstance(error, UserError):
        assert (unary.problem["param"], unary.problem["hint"]) == ("rewards.0", "fix it")
    metrics = (await service.get("/metrics")).body.decode()
    assert f'rlhfless_errors_total{{category="{category}",function="reward"}} 2.0' in metrics


@in_loop
async def test_a_defect_leaves_its_traceback_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await Service(Echo(reward=raising(ValueError("a defect")))).ask(REWARD, reward(tmp_path))
    assert "Traceback" in caplog.text
    assert "ValueError: a defect" in caplog.text


@in_loop
async def test_a_handler_without_a_result_is_a_defect(tmp_path: Path) -> None:
    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        yield Progress(running=0, waiting=0, kv_tokens=0, iterations=0)

    answer = await Service(Echo(rollout=handle)).ask(ROLLOUT, rollout(tmp_path))
    assert answer.problem["category"] == "internal"
    assert "without a result" in answer.problem["detail"]


@in_loop
async def test_frames_after_the_terminal_one_are_not_sent(tmp_path: Path) -> None:
    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        yield RolloutDone()
        yield Progress(running=0, waiting=0, kv_tokens=0, iterations=0)

    answer = await Service(Echo(rollout=handle)).ask(ROLLOUT, rollout(tmp_path))
    assert [type(f) for f in answer.frames] == [RolloutDone]


# --- time ---------------------------------------------------------------------------------------


@in_loop
async def test_silence_is_filled_with_heartbeats(tmp_path: Path) -> None:
    gate = Gate()
    service = Service(Echo(rollout=gate.handle, reward=gate.handle), heartbeat_s=0.01)
    for path, body in ((ROLLOUT, rollout(tmp_path)), (REWARD, reward(tmp_path))):
        gate.open.clear()
        client = service.post(path, body)
        await client.until(Heartbeat)
        gate.open.set()
        await client.task
        beats = [f for f in client.frames if isinstance(f, Heartbeat)]
        assert beats[-1].busy_s > 0
        assert not isinstance(client.frames[-1], Heartbeat)


@in_loop
async def test_an_answer_says_how_long_the_handler_worked(tmp_path: Path) -> None:
    service = Service(Echo(rollout=Gate().handle, reward=counting()[1]))
    unary = await service.ask(REWARD, reward(tmp_path))
    assert unary.busy_s is not None
    assert unary.busy_s > 0
    streamed = service.post(ROLLOUT, rollout(tmp_path))
    await streamed.until(Progress)
    await service.shell.drain(10)
    await streamed.task
    assert streamed.busy_s is not None
    assert streamed.busy_s > 0


@in_loop
async def test_a_handler_sees_its_deadline(tmp_path: Path) -> None:
    gate = Gate()
    await Service(Echo(reward=gate.handle)).ask(REWARD, reward(tmp_path, deadline_s=0.02))
    assert gate.ended_for == "deadline"


@in_loop
async def test_a_handler_that_ignores_its_deadline_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("functions.execution.OVERRUN_S", 0.02)
    release = threading.Event()

    def deaf(request: Any, context: CallContext) -> Iterator[Frame]:
        release.wait()
        yield RewardDone(scores=[], totals=[])

    service = Service(Echo(reward=deaf))
    answer = await service.ask(REWARD, reward(tmp_path, deadline_s=0.01))
    assert answer.problem["category"] == "transient"
    full = await service.ask(REWARD, reward(tmp_path, "another"))
    assert full.status == 503  # its thread is still taken
    release.set()


@in_loop
async def test_a_slow_reader_slows_the_handler(tmp_path: Path) -> None:
    made: list[int] = []
    sent = asyncio.Event()

    def flood(request: Any, context: CallContext) -> Iterator[Frame]:
        for i in range(1000):
            made.append(i)
            yield Progress(running=i, waiting=0, kv_tokens=0, iterations=0)
        yield RolloutDone()

    service = Service(Echo(rollout=flood))
    client = service.post(ROLLOUT, rollout(tmp_path))
    send = client._send

    async def stuck(message: dict[str, Any]) -> None:
        await sent.wait()
        await send(message)

    client._send = stuck  # type: ignore[method-assign]
    await until(lambda: len(made) > 64)
    await asyncio.sleep(0.02)  # time enough to make them all, were it not for the reader
    assert len(made) < 200
    sent.set()
    await client.task
    assert len(client.frames) == 1001


# --- metrics ------------------------------------------------------------------------------------


@in_loop
async def test_metrics_count_calls_tokens_and_refusals(tmp_path: Path) -> None:
    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        yield Tokens(samples=[0], starts=[0], counts=[3], tokens=[1, 2, 3], logprobs=b"", version=0)
        yield RolloutDone(prefill_computed=10, prefill_saved=70)

    service = Service(Echo(rollout=handle))
    await service.ask(ROLLOUT, rollout(tmp_path))
    await service.ask(ROLLOUT, b"", "wrong")
    text = (await service.get("/metrics")).body.decode()
    for line in (
        'rlhfless_calls_total{function="reward",outcome="ok"} 1.0',
        'rlhfless_refused_total{function="reward",status="401"} 1.0',
        'rlhfless_tokens_total{function="reward",kind="generated"} 3.0',
        'rlhfless_tokens_total{function="reward",kind="prefilled"} 10.0',
        'rlhfless_tokens_total{function="reward",kind="prefill_saved"} 70.0',
        'rlhfless_calls_in_flight{function="reward"} 0.0',
    ):
        assert line in text
    assert "rlhfless_busy_seconds_total" in text
    assert TOKEN not in text
