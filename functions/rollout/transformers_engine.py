"""The transformers engine: our own decode loop over a ``transformers`` causal LM, CPU or CUDA.

A prompt is prefilled once for all its samples. Which tokens a sample draws depends on its seed and
the model alone, never on its neighbours or on where it was begun.
"""

from __future__ import annotations

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
from functions.rollout.limits import kv_bytes_per_token, limits_for
from functions.rollout.llama_decoder import LlamaDecoder
from functions.rollout.llama_weights import LlamaWeights, supports
from functions.rollout.request import check_roster
from functions.rollout.roster import Roster
from rlhfless.messages import ModelRef, RolloutRequest
from rlhfless.objects import ObjectStore

SHARED_SAVING_TOKENS = 48
"""Share prompts when each row on average is spared so many columns; below, one attention over
expanded rows is cheaper than two and their merge."""


class TransformersEngine:
    """An ``Engine``. One request at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._versioned = VersionedModel(device)
        self._weights: tuple[Any, LlamaWeights | None] = (None, None)
        self._pulled = PullStats()

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        self._pulled = self._versioned.ensure(ref, store)
        model = self._versioned.model
        if self._weights[0] is not model:
            self._weights = (model, LlamaWeights(model) if supports(model) else None)
        elif self._weights[1] is not None:
            self._weights[1].refresh()
        return self._pulled

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        model, version = self._versioned.model, self._versioned.version
        roster = Roster.of(request)
        check_roster(roster, model.config)
        shared = self._shares(request)
        limits = limits_for(request, model, self._device)
        decoder = self._decoder(request, limits.max_batch, shared)
        admission = Admission(roster, limits, shared=shared)
        generation = Generation(request, roster, context, model, version, decoder, admission)
        yield from generation.frames()
        yield msgspec.structs.replace(
            generation.done(),
            weights_pull_s=self._pulled.seconds,
            weights_bytes=self._pulled.bytes,
            max_batch=limits.max_batch,
            kv_capacity=limits.kv_tokens,
            kv_token_bytes=kv_bytes_per_token(model),
        )

    def close(self) -> None:
        self._weights = (None, None)
        self._versioned.close()

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

    def _decoder(self, request: RolloutRequest, max_batch: int, shared: bool) -> Decoder:
        max_rows = min(max_batch, max(1, len(request.samples)))
        model, weights = self._weights
        if weights is None:
            return HfDecoder(model, max_rows=max_rows)
        num_prompts = min(max_rows, len(request.prompts))
        return LlamaDecoder(weights, max_rows=max_rows, num_prompts=num_prompts, shared=shared)
