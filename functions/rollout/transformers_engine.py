"""The transformers engine: our own decode loop over a ``transformers`` causal LM, CPU or CUDA.

A prompt is prefilled once for all its samples. Which tokens a sample draws depends on its seed and
the model alone, never on its neighbours or on where it was begun.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from functions.context import CallContext
from functions.modeling import PullStats, VersionedModel
from functions.rollout.admission import Admission
from functions.rollout.decoder import Decoder
from functions.rollout.engine import RolloutFrame
from functions.rollout.generation import Generation
from functions.rollout.hf_decoder import HfDecoder
from functions.rollout.limits import kv_bytes_per_token, limits_for, prefix_memory
from functions.rollout.llama_decoder import LlamaDecoder
from functions.rollout.llama_weights import LlamaWeights, supports
from functions.rollout.prefilling import compute_segments
from functions.rollout.prefixes import PrefixBooks, Prefixes
from functions.rollout.request import check_roster
from functions.rollout.roster import Roster
from prefix_cache.entry import Layout
from prefix_cache.keys import KvIdentity
from prefix_cache.store import KvStore
from rlhfless.messages import (
    ModelRef,
    PrefillDone,
    PrefillRequest,
    PrefixUse,
    RolloutRequest,
)
from rlhfless.objects import ObjectStore

_log = logging.getLogger(__name__)

SHARED_SAVING_TOKENS = 48
"""Share prompts when each row on average is spared so many columns; below, one attention over
expanded rows is cheaper than two and their merge."""


class TransformersEngine:
    """An ``Engine``. One request at a time. ``prefixes``: where it keeps keys and values between
    calls; by default up to ``prefix_memory`` of them."""

    def __init__(self, device: torch.device, prefixes: KvStore | None = None) -> None:
        self._device = device
        self._versioned = VersionedModel(device)
        self._weights: tuple[Any, LlamaWeights | None] = (None, None)
        self._pulled = PullStats()
        self._kv = prefixes or KvStore(prefix_memory())
        self._serves: tuple[KvIdentity, Layout] | None = None
        self._told = 0

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        self._pulled = self._versioned.ensure(ref, store)
        model = self._versioned.model
        if self._weights[0] is not model:
            self._weights = (model, LlamaWeights(model) if supports(model) else None)
        elif self._weights[1] is not None:
            self._weights[1].refresh()
        self._serve(ref)
        return self._pulled

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        model, version = self._versioned.model, self._versioned.version
        roster = Roster.of(request)
        check_roster(roster, model.config)
        shared = self._shares(request)
        limits = limits_for(request, model, self._device)
        prefixes = self._prefixes(request.prefix, context.store) if request.prefix else None
        decoder = self._decoder(request, limits.max_batch, shared, prefixes)
        admission = Admission(roster, limits, shared=shared)
        generation = Generation(request, roster, context, model, version, decoder, admission)
        yield from generation.frames()
        done = generation.done()
        self._tell()
        books = prefixes.books if prefixes is not None else PrefixBooks()
        yield msgspec.structs.replace(
            books.entered_in(done),
            weights_pull_s=self._pulled.seconds,
            weights_bytes=self._pulled.bytes,
            max_batch=limits.max_batch,
            kv_capacity=limits.kv_tokens,
            kv_token_bytes=kv_bytes_per_token(model) if self._weights[1] is not None else 0,
        )

    def prefill(self, request: PrefillRequest, context: CallContext) -> PrefillDone:
        roster = Roster(request.prompts, [], request.cuts)
        check_roster(roster, self._versioned.model.config)
        prefixes = self._prefixes(PrefixUse(cuts=[], publish=True), context.store)
        weights = self._weights[1]
        done = PrefillDone()
        if weights is not None and prefixes is not None:
            done = compute_segments(weights, prefixes, request, context)
            self._tell()
        return msgspec.structs.replace(
            done, weights_pull_s=self._pulled.seconds, weights_bytes=self._pulled.bytes
        )

    def close(self) -> None:
        self._weights = (None, None)
        self._kv.clear()
        self._versioned.close()

    def _serve(self, ref: ModelRef) -> None:
        """Prefixes of another model or version are dropped here."""
        weights = self._weights[1]
        if weights is None:  # the model's own forward keeps none
            self._serves = None
            self._kv.clear()
            return
        identity = KvIdentity(path=ref.path, job=ref.job, version=ref.version, dtype=ref.dtype)
        layout = Layout(len(weights.layers), weights.kv_heads, weights.head_dim, ref.dtype)
        self._serves = identity, layout
        self._kv.use(identity, layout)

    def _tell(self) -> None:
        """Calls go on without the KV store, so its troubles are told here alone."""
        counters = self._kv.counters
        if counters.troubles > self._told:
            _log.warning(
                "prefixes were computed or not stored because of %d troubles of the store (%s)",
                counters.troubles - self._told,
                counters.last_problem,
            )
            self._told = counters.troubles

    def _prefixes(self, use: PrefixUse, objects: ObjectStore) -> Prefixes | None:
        if self._serves is None:
            return None
        return Prefixes(self._kv, *self._serves, objects, load=use.load, publish=use.publish)

    def _shares(self, request: RolloutRequest) -> bool:
        """Whether rows of a prompt attend to one copy of it (``llama_decoder``, two layouts).

        Only in float32: in half precision the fused attention kernels are better than ours.
        """
        weights = self._weights[1]
        if weights is None or weights.dtype != torch.float32 or not request.samples:
            return False
        held = sum(len(request.prompts[p]) for p in {s.prompt for s in request.samples})
        spread = sum(len(request.prompts[s.prompt]) for s in request.samples)
        return spread - held >= SHARED_SAVING_TOKENS * len(request.samples)

    def _decoder(
        self, request: RolloutRequest, max_batch: int, shared: bool, prefixes: Prefixes | None
    ) -> Decoder:
        max_rows = min(max_batch, max(1, len(request.samples)))
        model, weights = self._weights
        if weights is None:
            return HfDecoder(model, max_rows=max_rows)
        num_prompts = min(max_rows, len(request.prompts))
        return LlamaDecoder(
            weights, max_rows=max_rows, num_prompts=num_prompts, shared=shared, prefixes=prefixes
        )
