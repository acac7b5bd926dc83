"""A training function that takes its time: its versions are real objects, committed as any other,
and hold a few random numbers."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping

import msgspec
import torch

from benchmarks.paced.pace import PACE
from benchmarks.paced.scoring import wait
from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.weights.tensors import publish
from rlhfless.batches import Batch, decode_batch, read_batch
from rlhfless.messages import (
    ExportDone,
    ExportRequest,
    Frame,
    GradientsDone,
    GradientsRequest,
    Request,
    TrainDone,
    TrainRequest,
)
from rlhfless.versions import committed, read_manifest

PARAMETERS = 1 << 18
"""Of a version: a megabyte."""
DIGEST = "paced/digest"
"""Metric that stands for all tokens, log-probs and rewards of a step's batch, in their order."""

OVERLAPPED = "training/overlapped_share"
"""As the training function has it; here of all tokens."""


class PacedTraining:
    """Gradients that were begun ahead are remembered for the train call of the same version."""

    def __init__(self) -> None:
        self._ahead: tuple[tuple[str, int], dict[int, int]] = (("", 0), {})  # sample -> tokens
        self.handlers: Mapping[type[Request], Handler] = {
            GradientsRequest: self.gradients,
            TrainRequest: self.train,
            ExportRequest: self.export,
        }

    def gradients(self, request: GradientsRequest, context: CallContext) -> Iterator[Frame]:
        model = request.model
        if read_manifest(context.store, model.job, model.version + 1) is not None:
            yield GradientsDone()
            return
        begun = self._begun(model.job, model.version)
        tokens = _tokens(decode_batch(request.batch))
        new = {s: n for s, n in zip(request.samples, tokens, strict=True) if s not in begun}
        yield from wait(PACE.train_token_s * sum(new.values()), context)
        begun.update(new)
        yield GradientsDone(num_samples=len(begun))

    def train(self, request: TrainRequest, context: CallContext) -> Iterator[Frame]:
        job, parent = request.model.job, request.model.version
        earlier = committed(context.store, job, parent + 1, request.call.id)
        if earlier is not None:
            yield TrainDone(version=earlier.version, metrics=earlier.metrics, repeated=True)
            return
        began = time.perf_counter()
        batch = read_batch(context.store, request.batch)
        begun = self._begun(job, parent)
        every = _tokens(batch)
        tokens = sum(n for s, n in enumerate(every) if s not in begun)
        yield from wait(PACE.train_s + PACE.train_token_s * tokens, context)
        trained = time.perf_counter()
        generator = torch.Generator().manual_seed(parent)
        metrics = {DIGEST: _digest(batch), OVERLAPPED: 1.0 - tokens / max(1, sum(every))}
        manifest, ours = publish(
            context.store,
            job,
            parent,
            {"weight": torch.randn(PARAMETERS, generator=generator)},
            kind="partial",
            call_id=request.call.id,
            attachments={"optimizer": b"paced"} if request.checkpoint else None,
            metrics=metrics,
            train_request=msgspec.to_builtins(request),
            data_position=request.data_position,
        )
        yield TrainDone(
            version=manifest.version,
            metrics=metrics,
            repeated=not ours,
            train_s=trained - began,
            publish_s=time.perf_counter() - trained,
        )

    def export(self, request: ExportRequest, _: CallContext) -> Iterator[Frame]:
        os.makedirs(request.folder, exist_ok=True)
        yield ExportDone(folder=request.folder, files=[])

    def close(self) -> None:
        pass

    def _begun(self, job: str, version: int) -> dict[int, int]:
        if self._ahead[0] != (job, version):
            self._ahead = ((job, version), {})
        return self._ahead[1]


def _tokens(batch: Batch) -> list[int]:
    """Of each sample, its prompt's included."""
    tokens: list[int] = (batch.prompt_lengths + batch.response_lengths).tolist()
    return tokens


def _digest(batch: Batch) -> float:
    digest = hashlib.blake2b(digest_size=6)
    for array in (batch.response_tokens, batch.response_lengths, batch.rollout_logprobs):
        digest.update(array.tobytes())
    return float(int.from_bytes(digest.digest(), "little"))


def create(_: FunctionConfig) -> Function:
    time.sleep(PACE.start_s)
    return PacedTraining()
