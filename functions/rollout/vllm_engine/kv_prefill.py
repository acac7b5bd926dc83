"""A prefill call on vLLM: beginnings of prompts go into the object store, each computed once.

Each is a request of one token, to be thrown away. When vLLM says that it is done, its keys and
values are still on their way into the store; the call ends when they have arrived, or when nothing
arrives any more: what is not there will be computed by whoever needs it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from functions.context import CallContext
from functions.rollout.vllm_engine.asking import Asked, Deltas, Generate, Manner
from functions.rollout.vllm_engine.generation import Serving
from functions.rollout.vllm_engine.kv_use import KvUse
from rlhfless.errors import RlhflessError, TransientError
from rlhfless.messages import PrefillDone, PrefillRequest, SamplingParams

LOOK_S = 0.1
ARRIVE_S = 10.0
_log = logging.getLogger(__name__)


def prefill(
    name: str,
    request: PrefillRequest,
    context: CallContext,
    engine: Asked,
    serving: Serving,
    use: KvUse,
) -> PrefillDone:
    """Raises ``TransientError`` if the call is stopped or the weights change under it."""
    greedy = SamplingParams(temperature=0.0)
    manner = Manner(greedy, (), serving.salt, serving.epoch, serving.adapter)
    computed = cached = 0
    computed_s = 0.0
    found, arrived = use.stored(0.0)
    waves = _waves(list(_beginnings(request, use)), use.sizes.host_tokens // 2)
    for turn, wave in enumerate(waves):
        began = time.perf_counter()
        asked = [
            Generate(f"{name}-{turn}-{number}", number, tokens, 1, 0, use.transfer(cuts))
            for number, (tokens, cuts) in enumerate(wave)
        ]
        reused = _generated(asked, manner, engine, context)
        cached += reused
        computed += sum(len(tokens) for tokens, _ in wave) - reused
        computed_s += time.perf_counter() - began
        found, arrived = use.stored(min(ARRIVE_S, context.remaining_s))
        if not arrived:
            break
    if not arrived or found.failed:
        _log.warning(
            "of prefixes, %d blocks were stored, %d were there, %d failed%s",
            *(found.published, found.present, found.failed),
            "" if arrived else "; the rest is not waited for",
        )
    return PrefillDone(
        tokens_computed=computed,
        tokens_loaded=cached,
        prefill_s=max(0.0, computed_s - found.load_s),
        published_bytes=found.published_bytes,
        publish_s=found.publish_s,
    )


_Beginning: TypeAlias = tuple[tuple[int, ...], list[int]]
"""Of a prompt, as far as it can be stored, with its cuts."""


def _beginnings(request: PrefillRequest, use: KvUse) -> Iterator[_Beginning]:
    """Different ones; prompts too short to fill a block are left out."""
    wanted = {
        tuple(tokens[:length]): cuts
        for tokens, cuts in zip(request.prompts, request.cuts, strict=True)
        if (length := use.stored_tokens(cuts))
    }
    yield from wanted.items()


def _waves(beginnings: Sequence[_Beginning], room: int) -> Iterator[list[_Beginning]]:
    """As many at once as fit between vLLM's cache and the store; of more, vLLM would drop some."""
    wave: list[_Beginning] = []
    for beginning in beginnings:
        if wave and sum(len(tokens) for tokens, _ in (*wave, beginning)) > room:
            yield wave
            wave = []
        wave.append(beginning)
    if wave:
        yield wave


def _generated(
    asked: Sequence[Generate], manner: Manner, engine: Asked, context: CallContext
) -> int:
    """The prompt tokens that vLLM had cached, or loaded."""
    deltas: Deltas = queue.SimpleQueue()
    engine.generate(asked, manner, deltas)
    try:
        return _heard(asked, deltas, context)
    except RlhflessError:
        engine.abort([each.id for each in asked])
        raise


def _heard(asked: Sequence[Generate], deltas: Deltas, context: CallContext) -> int:
    """Wait for the end of all."""
    cached = 0
    missing = len(asked)
    while missing:
        reason = context.stop_reason
        if reason is not None:
            raise TransientError(f"prefixes were not all computed before the {reason}")
        try:
            delta = deltas.get(timeout=LOOK_S)
        except queue.Empty:
            continue
        if delta.error is not None:
            raise delta.error
        if delta.end == "abort":
            raise TransientError("other weights are served now")
        cached += delta.cached
        missing -= delta.end is not None
    return cached
