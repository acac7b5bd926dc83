"""The runtime on a scripted AsyncLLM: every request has a last delta, whenever the end comes."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from functions.rollout.vllm_engine.asking import Delta, Deltas, Generate, Manner
from functions.rollout.vllm_engine.stats import EngineStats
from rlhfless.errors import TransientError
from rlhfless.messages import SamplingParams

if TYPE_CHECKING:
    from functions.rollout.vllm_engine.runtime import Runtime

MANNER = Manner(SamplingParams(), [], "salt", epoch=0)


class Script:
    """An AsyncLLM. Requests wait at ``door`` before vLLM knows them; then each gives a token and
    waits for its end."""

    def __init__(self) -> None:
        self.errored = False
        self.door = asyncio.Event()
        self.known: dict[str, asyncio.Queue[str]] = {}
        self.done: list[str] = []
        self.paused = False

    async def generate(
        self, prompt: Any, params: Any, request_id: str, *, lora_request: Any
    ) -> AsyncIterator[Any]:
        del prompt, params, lora_request
        await self.door.wait()
        ends = self.known[request_id] = asyncio.Queue()
        yield output([7])
        end = await ends.get()
        del self.known[request_id]
        if end == "dead":
            from vllm.v1.engine.exceptions import EngineDeadError

            raise EngineDeadError
        yield output([], end)

    async def abort(self, ids: list[str]) -> None:
        for name in ids:
            if name in self.known:
                self.known[name].put_nowait("abort")

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("abort", True)
        self.paused = True
        await self.abort(list(self.known))

    async def resume_generation(self) -> None:
        self.paused = False

    async def open(self) -> None:
        self.door.set()

    async def die(self) -> None:
        self.errored = True
        for ends in self.known.values():
            ends.put_nowait("dead")

    def shutdown(self, timeout: float) -> None:
        self.done.append("shutdown")


def output(tokens: list[int], end: str | None = None) -> Any:
    logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
    found = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=end)
    return SimpleNamespace(outputs=[found], num_cached_tokens=2)


@pytest.fixture
def runtime(start_vllm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    del start_vllm  # vLLM is there, and imported
    from functions.rollout.vllm_engine import runtime as runtimes
    from functions.rollout.vllm_engine.runtime import Runtime

    async def start(self: Runtime, arguments: Any) -> Script:
        return Script()

    monkeypatch.setattr(Runtime, "_start", start)
    monkeypatch.setattr(runtimes, "WATCH_S", 0.01)
    monkeypatch.setattr(runtimes, "AGAIN_S", 0.001)
    made = Runtime(SimpleNamespace(), EngineStats())  # type: ignore[arg-type]
    yield made
    made.close()


def script(runtime: Runtime) -> Script:
    llm: Any = runtime.llm
    return llm


def ask(runtime: Runtime, *names: str, epoch: int = 0) -> Deltas:
    deltas: Deltas = queue.SimpleQueue()
    requests = [Generate(name, key, [1, 2, 3], 9, seed=1) for key, name in enumerate(names)]
    manner = Manner(MANNER.sampling, [], "salt", epoch)
    runtime.generate(requests, manner, deltas)
    return deltas


def hear(deltas: Deltas) -> Delta:
    return deltas.get(timeout=60)


def test_deltas_then_the_end(runtime: Runtime) -> None:
    runtime.do(script(runtime).open())
    deltas = ask(runtime, "a")
    first = hear(deltas)
    assert (first.tokens, first.logprobs, first.cached, first.end) == ([7], [-0.5], 2, None)
    runtime.abort(["a"])
    last = deltas.get_nowait()
    assert (last.tokens, last.cached, last.end) == ([], 0, "abort")
    assert deltas.empty()


def test_what_vllm_does_not_know_yet_is_aborted_when_it_does(runtime: Runtime) -> None:
    deltas = ask(runtime, "a", "b")
    aborting = threading.Thread(target=runtime.abort, args=(["a", "b"],))
    aborting.start()
    aborting.join(0.05)
    assert aborting.is_alive()
    runtime.do(script(runtime).open())
    aborting.join()
    ends = [delta.end for delta in iter_now(deltas)]
    assert ends.count("abort") == 2


def test_weights_are_exchanged_when_nothing_runs_and_late_requests_are_refused(
    runtime: Runtime,
) -> None:
    llm = script(runtime)
    runtime.do(llm.open())
    early = ask(runtime, "a")
    hear(early)
    known: list[dict[str, Any]] = []

    async def work(llm: Any) -> None:
        known.append(dict(llm.known))
        assert llm.paused

    runtime.exchange(work)
    assert known == [{}]
    assert [delta.end for delta in iter_now(early)] == ["abort"]
    assert not llm.paused
    assert hear(ask(runtime, "b", epoch=0)).end == "abort"
    assert hear(ask(runtime, "c", epoch=runtime.epoch)).tokens == [7]


def test_what_is_on_its_way_to_vllm_does_not_meet_other_weights(runtime: Runtime) -> None:
    llm = script(runtime)
    deltas = ask(runtime, "a")
    seen: list[bool] = []

    async def work(llm: Any) -> None:
        seen.append(bool(llm.known) or bool(runtime._answers))

    exchanging = threading.Thread(target=runtime.exchange, args=(work,))
    exchanging.start()
    exchanging.join(0.05)
    assert seen == []
    runtime.do(llm.open())
    exchanging.join()
    assert seen == [False]
    assert [delta.end for delta in iter_now(deltas)][-1] == "abort"


def test_death_is_told_to_all(runtime: Runtime) -> None:
    llm = script(runtime)
    runtime.do(llm.open())
    deltas = ask(runtime, "a")
    hear(deltas)
    runtime.do(llm.die())
    assert isinstance(hear(deltas).error, TransientError)
    assert runtime.dead


def test_a_dead_core_answers_nobody_and_nobody_waits(runtime: Runtime) -> None:
    llm = script(runtime)

    async def ask_the_core() -> None:
        llm.errored = True
        await asyncio.Event().wait()

    with pytest.raises(TransientError, match="died"):
        runtime.do(ask_the_core())
    deltas = ask(runtime, "a")  # never gets through the door
    runtime.abort(["a"])
    assert isinstance(deltas.get_nowait().error, TransientError)


def test_closing_tells_whoever_waits(runtime: Runtime) -> None:
    deltas = ask(runtime, "a", "b")
    aborting = threading.Thread(target=runtime.abort, args=(["a"],))
    aborting.start()
    llm = script(runtime)
    runtime.close()
    aborting.join()
    assert llm.done == ["shutdown"]
    assert [bool(delta.error or delta.end) for delta in iter_now(deltas)] == [True, True]
    assert isinstance(hear(ask(runtime, "c")).error, TransientError)
    with pytest.raises(TransientError, match="going away"):
        runtime.do(asyncio.sleep(0))
    runtime.abort(["c"])


def iter_now(deltas: Deltas) -> Iterator[Delta]:
    while not deltas.empty():
        yield deltas.get_nowait()
