"""A prefill call: segments of prompts go into the object store, each computed once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from functions.context import CallContext
from functions.rollout.admission import PREFILL_CHUNK_TOKENS
from functions.rollout.columns import ColumnCache
from functions.rollout.llama_prefill import Prefill, Prompt
from functions.rollout.llama_weights import LlamaWeights
from functions.rollout.prefixes import Prefixes
from rlhfless.errors import TransientError
from rlhfless.messages import PrefillDone, PrefillRequest


@torch.inference_mode()
def compute_segments(
    weights: LlamaWeights, prefixes: Prefixes, request: PrefillRequest, context: CallContext
) -> PrefillDone:
    """Pass by pass, so that a stop is noticed soon; what is published by then stays."""
    began = time.perf_counter()
    computed = 0
    for chunk in _chunks(request.prompts, request.cuts):
        reason = context.stop_reason
        if reason is not None:
            raise TransientError(f"prefixes were not all computed before the {reason}")
        cache = ColumnCache(weights.layer_shapes, len(chunk), weights.dtype, weights.device)
        prefill = Prefill(weights, cache, prefixes)
        prefill.segments(chunk)
        computed += prefill.tokens
    books = prefixes.books
    return PrefillDone(
        tokens_computed=computed,
        tokens_loaded=books.loaded + books.reused,
        prefill_s=time.perf_counter() - began - books.load_s - books.publish_s,
        published_bytes=books.published_bytes,
        publish_s=books.publish_s,
    )


def _chunks(prompts: Sequence[list[int]], cuts: Sequence[list[int]]) -> Iterator[list[Prompt]]:
    """Different prefixes up to their last cuts, in passes of limited size; those that begin alike
    come together."""
    wanted = {
        (tuple(tokens[: ends[-1]]), tuple(ends))
        for tokens, ends in zip(prompts, cuts, strict=True)
        if ends
    }
    chunk: list[Prompt] = []
    size = 0
    for tokens, ends in sorted(wanted):
        if chunk and size + len(tokens) > PREFILL_CHUNK_TOKENS:
            yield chunk
            chunk, size = [], 0
        chunk.append(Prompt(tokens, ends))
        size += len(tokens)
    if chunk:
        yield chunk
