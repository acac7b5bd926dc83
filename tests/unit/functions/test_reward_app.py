"""The handler: totals, errors, heartbeats, stopping, several rewards and calls at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.context import CallContext, FunctionConfig, StopReason
from functions.reward import app as reward_app
from functions.reward.app import RewardScoring, create
from functions.reward.scorer_cache import ScorerCache
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import (
    CallInfo,
    Frame,
    Heartbeat,
    RewardDone,
    RewardFunction,
    RewardRequest,
)
from rlhfless.objects import ObjectStore

REWARDS = """
import os, time
def number(completions): return [float(c) for c in completions]
def negative(completions): return [-float(c) if float(c) > 1 else None for c in completions]
def never(completions): return [None] * len(completions)
def slow(completions): time.sleep(0.4); return [1.0] * len(completions)
def hang(completions): time.sleep(1000)
def wrong(completions): return [completions[1] / 2]
"""


@pytest.fixture
def service() -> Iterator[RewardScoring]:
    made = create(FunctionConfig())
    assert isinstance(made, RewardScoring)
    yield made
    made.close()


@pytest.fixture
def reward(tmp_path: Path) -> Callable[..., RewardFunction]:
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)

    def build(name: str, **settings: Any) -> RewardFunction:
        return RewardFunction(name=name, kind="python", target=f"{path}:{name}", **settings)

    return build


def _request(functions: list[RewardFunction], completions: list[str]) -> RewardRequest:
    count = len(completions)
    return RewardRequest(
        call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
        functions=functions,
        sample_ids=[f"s{i}" for i in range(count)],
        prompts=["p"] * count,
        completions=list(completions),
        completion_ids=[[0]] * count,
    )


def _context(seconds: float = 60.0) -> CallContext:
    return CallContext(store=ObjectStore("memory://"), deadline=time.monotonic() + seconds)


def _run(service: RewardScoring, request: RewardRequest) -> RewardDone:
    frames = list(service.handlers[RewardRequest](request, _context()))
    assert all(isinstance(frame, Heartbeat) for frame in frames[:-1])
    assert isinstance(frames[-1], RewardDone)
    return frames[-1]


def test_scores_by_function_and_weighted_totals(
    service: RewardScoring, reward: Callable[..., RewardFunction]
) -> None:
    functions = [reward("number"), reward("negative", weight=0.5), reward("never", weight=9.0)]
    done = _run(service, _request(functions, ["1", "2", "5"]))
    assert done.scores == [[1.0, 2.0, 5.0], [None, -2.0, -5.0], [None, None, None]]
    assert done.totals == [1.0, 1.0, 2.5]


def test_no_samples_need_no_reward(
    service: RewardScoring, reward: Callable[..., RewardFunction]
) -> None:
    done = _run(service, _request([reward("wrong"), reward("number")], []))
    assert done == RewardDone(scores=[[], []], totals=[])


def test_a_sample_without_any_reward_is_named(
    service: RewardScoring, reward: Callable[..., RewardFunction]
) -> None:
    request = _request([reward("negative"), reward("never")], ["7", "0.5"])
    with pytest.raises(UserError) as caught:
        _run(service, request)
    assert caught.value.detail == (
        "no reward applies to sample 's1' (2 of 2, completion '0.5'): "
        "all of negative, never returned None"
    )
    assert caught.value.param == "rewards"


def test_an_error_names_the_reward_and_its_field_and_others_are_given_up(
    service: RewardScoring, reward: Callable[..., RewardFunction]
) -> None:
    request = _request([reward("hang", timeout_s=500), reward("wrong")], ["7", "8"])
    with pytest.raises(UserError) as caught:
        _run(service, request)
    assert caught.value.detail.startswith("reward 'wrong' raised TypeError: unsupported operand")
    assert "sample 's1' (2 of 2, completion '8')" in caught.value.detail
    assert caught.value.param == "rewards.1"
    assert caught.value.trace is not None


def test_heartbeats_while_waiting(
    service: RewardScoring,
    reward: Callable[..., RewardFunction],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_app, "HEARTBEAT_S", 0.05)
    frames = list(service.score(_request([reward("slow")], ["1"]), _context()))
    assert isinstance(frames[-1], RewardDone)
    beats = [frame.busy_s for frame in frames[:-1] if isinstance(frame, Heartbeat)]
    assert len(beats) == len(frames) - 1 >= 1
    assert beats == sorted(beats)


@pytest.mark.parametrize("reason", ["abort", "drain", "deadline"])
def test_stopping_ends_the_call_as_transient(
    reason: StopReason,
    service: RewardScoring,
    reward: Callable[..., RewardFunction],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_app, "HEARTBEAT_S", 0.0)
    context = _context(0.2 if reason == "deadline" else 60.0)
    functions = [reward("number"), reward("hang", timeout_s=500)]
    frames = service.score(_request(functions, ["1"]), context)
    assert isinstance(next(frames), Heartbeat)
    if reason != "deadline":
        context.stop(reason)
    with pytest.raises(TransientError, match=rf"stopped \({reason}\) .* reward .*hang"):
        list(frames)
    assert _run(service, _request(functions[:1], ["1"])).totals == [1.0], "others still work"


def test_an_abandoned_call_frees_its_reward(
    service: RewardScoring,
    reward: Callable[..., RewardFunction],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_app, "HEARTBEAT_S", 0.0)
    frames = service.score(_request([reward("hang", timeout_s=500)], ["1"]), _context())
    next(frames)
    assert hasattr(frames, "close")
    frames.close()
    service.close()  # would wait for the hanging call if that were still wanted


def test_closing_ends_calls_in_progress(reward: Callable[..., RewardFunction]) -> None:
    service = RewardScoring(FunctionConfig())
    frames: list[Frame] = []
    errors: list[TransientError] = []

    def call() -> None:
        try:
            request = _request([reward("hang", timeout_s=500)], ["1"])
            frames.extend(service.score(request, _context()))
        except TransientError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not service._scorers._entries:
        time.sleep(0.001)
    service.close()
    thread.join()
    assert len(errors) == 1
    assert "closing" in errors[0].detail


def test_two_calls_at_once(service: RewardScoring, reward: Callable[..., RewardFunction]) -> None:
    results: dict[int, RewardDone] = {}

    def call(number: int) -> None:
        functions = [reward("number"), reward("negative")]
        results[number] = _run(service, _request(functions, [str(number)] * 8))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: r.totals[0] for n, r in results.items()} == {1: 1.0, 2: 0.0, 3: 0.0, 4: 0.0}


def test_lists_that_do_not_fit_are_our_own_fault(
    service: RewardScoring, reward: Callable[..., RewardFunction]
) -> None:
    request = RewardRequest(
        call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
        functions=[reward("number")],
        sample_ids=["s0"],
        prompts=["p"],
        completions=["1"],
        completion_ids=[[1]],
        columns={"answer": ["a", "b"]},
    )
    with pytest.raises(InternalError):
        _run(service, request)


def test_the_cache_keeps_what_is_used_and_lets_the_oldest_go(
    reward: Callable[..., RewardFunction],
) -> None:
    cache = ScorerCache(FunctionConfig(), max_idle=2)
    with cache.use(reward("number")) as first:
        for name in ("negative", "never", "slow"):
            with cache.use(reward(name)):
                pass
    assert [key.name for key in cache._entries] == ["never", "slow"]
    with cache.use(reward("slow", weight=7.0)), cache.use(reward("number")) as again:
        assert again is not first
        assert len(cache._entries) == 3
    assert len(cache._entries) == 2
    cache.close()


def test_importing_the_app_is_cheap() -> None:
    code = (
        "import sys, functions.reward.app\n"
        "heavy = {'torch', 'transformers', 'numpy', 'httpx', 'fastapi', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
