"""A prefill call on vLLM: beginnings of prompts go into the object store, each computed once.

Each is a request of one token, to be thrown away. When vLLM says that it is done, its keys and
values are still on their way into the store; the call ends when they have arrived, or when nothing
arrives any more: what is not there will be computed by whoever needs it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator

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
    began = time.perf_counter()
    asked = list(_requests(name, request, use))
    deltas: Deltas = queue.SimpleQueue()
    greedy = SamplingParams(temperature=0.0)
    manner = Manner(greedy, (), serving.salt, serving.epoch, serving.adapter)
    engine.generate(asked, manner, deltas)
    try:
        cached = _heard(asked, deltas, context)
    except RlhflessError:
        engine.abort([each.id for each in asked])
        raise
    computed_s = time.perf_counter() - began
    found, arrived = use.stored(min(ARRIVE_S, context.remaining_s))
    if not arrived or found.failed:
        _log.warning(
            "prefixes of %d prompts: %d blocks were stored, %d were there, %d failed%s",
            *(len(asked), found.published, found.present, found.failed),
            "" if arrived else "; it was not waited for the rest",
        )
    return PrefillDone(
        tokens_computed=sum(len(each.tokens) for each in asked) - cached,
        tokens_loaded=cached,
        prefill_s=max(0.0, computed_s - found.load_s),
        published_bytes=found.published_bytes,
        publish_s=found.publish_s,
    )


def _requests(name: str, request: PrefillRequest, use: KvUse) -> Iterator[Generate]:
    """Different beginnings; those too short to fill a block are left out."""
    wanted = {
        tuple(tokens[:length]): cuts
        for tokens, cuts in zip(request.prompts, request.cuts, strict=True)
        if (length := use.stored_tokens(cuts))
    }
    for number, (tokens, cuts) in enumerate(wanted.items()):
        yield Generate(
            id=f"{name}-{number}",
            key=number,
            tokens=tokens,
            max_tokens=1,
            seed=0,
            transfer=use.transfer(cuts),
        )


def _heard(asked: list[Generate], deltas: Deltas, context: CallContext) -> int:
    """Wait for the end of all; the prompt tokens that vLLM had cached."""
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
