"""The transformers engine: our own decode loop over a ``transformers`` causal LM, CPU or CUDA.

    request -> Admission (who is next) -> Batch (Decoder + Sampler + Samples) -> frames

Finished samples leave the batch at once and waiting ones take their place, so a long tail pays for
live rows only. A prompt is prefilled once for all its samples. Which tokens a sample draws depends
on its seed and the model alone, never on its neighbours or on where it was begun.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from functions.context import CallContext
from functions.modeling import PullStats, VersionedModel
from functions.rollout.admission import Admission
from functions.rollout.batch import Batch
from functions.rollout.decoder import Decoder
from functions.rollout.engine import RolloutFrame
from functions.rollout.hf_decoder import HfDecoder
from functions.rollout.limits import limits_for
from functions.rollout.llama_decoder import LlamaDecoder
from functions.rollout.llama_weights import LlamaWeights, supports
from functions.rollout.request import check_request, split_finished
from functions.rollout.samples import Samples
from rlhfless.messages import ModelRef, Progress, RolloutDone, RolloutRequest
from rlhfless.objects import ObjectStore

FLUSH_S = 0.05
"""Tokens wait no longer than this: what a killed instance loses."""
PROGRESS_S = 1.0
SHARED_SAVING_TOKENS = 48
"""Share prompts when each row on average is spared so many columns; below, one attention over
expanded rows is cheaper than two and their merge."""


@dataclass
class _Timing:
    prefill_s: float = 0.0
    decode_s: float = 0.0
    iterations: int = 0


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
        check_request(request, model.config)
        waiting, ended = split_finished(request)
        if ended.samples:
            yield ended
        shared = self._shares(request)
        limits = limits_for(request, model, self._device)
        admission = Admission(request, waiting, limits, shared=shared)
        decoder = self._decoder(request, limits.max_batch, shared)
        vocabulary = model.config.get_text_config().vocab_size
        samples = Samples(request.samples, request.sampling.stop_token_ids, vocabulary)
        batch = Batch(request, decoder, samples, self._device)
        timing = _Timing()
        clock = time.perf_counter
        next_flush = clock() + FLUSH_S
        next_progress = clock() + PROGRESS_S
        admitted_tokens = 0
        while context.stop_reason is None:
            started = clock()
            if new := admission.next():
                gone = batch.admit(new)
                for prompt in admission.exhausted(new):
                    decoder.forget(prompt)
                admitted_tokens += sum(_context_tokens(request, sample) for sample in new)
                now = clock()
                timing.prefill_s += now - started
            elif samples.num_rows:
                gone = batch.step()
                timing.iterations += 1
                now = clock()
                timing.decode_s += now - started
            else:
                break
            if gone:
                admission.left(gone)
            if now >= next_flush:
                yield from samples.unsent(version)
                next_flush = clock() + FLUSH_S
            if now >= next_progress:
                yield _progress(samples, admission, decoder, timing)
                next_progress = clock() + PROGRESS_S
        yield from samples.unsent(version)
        yield RolloutDone(
            unfinished=sorted(admission.waiting + samples.samples_of(range(samples.num_rows))),
            generated_tokens=samples.num_tokens,
            prefill_computed=decoder.prefill_tokens,
            prefill_saved=admitted_tokens - decoder.prefill_tokens,
            prefill_s=timing.prefill_s,
            decode_s=timing.decode_s,
            iterations=timing.iterations,
            weights_pull_s=self._pulled.seconds,
            weights_bytes=self._pulled.bytes,
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


def _context_tokens(request: RolloutRequest, sample: int) -> int:
    task = request.samples[sample]
    return len(request.prompts[task.prompt]) + len(task.tokens)


def _progress(
    samples: Samples, admission: Admission, decoder: Decoder, timing: _Timing
) -> Progress:
    return Progress(
        running=samples.num_rows,
        waiting=len(admission.waiting),
        kv_tokens=decoder.kv_tokens,
        iterations=timing.iterations,
    )
