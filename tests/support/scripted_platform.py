"""A platform whose functions are small scripts on the loop's clock, with faults on demand.

Whatever is lost on the way, a step must end with the same samples (``scripted_rollout``). The
training script keeps versions by compare-and-swap and counts optimizer steps.
"""

from __future__ import annotations

import array
import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from controller.platforms.base import Instance
from rlhfless.batches import Batch, decode_batch, read_batch
from rlhfless.checkpoints import Checkpoint, commit_checkpoint
from rlhfless.errors import CapacityError, ConflictError, RlhflessError, TransientError
from rlhfless.messages import (
    AnyFrame,
    ExportDone,
    ExportRequest,
    FunctionName,
    GradientsDone,
    GradientsRequest,
    Heartbeat,
    LogprobsDone,
    LogprobsRequest,
    Request,
    RewardDone,
    RewardRequest,
    RolloutRequest,
    SteerRequest,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore
from tests.support.scripted_rollout import Faults, ScriptedRollout

UNARY_S = 0.005
STEER_S = 0.001


@dataclass
class ScriptedPlatform:
    """``trained``: version -> the call that made it; ``batches``: that call -> what it was given.
    ``generated``: tokens each sample id cost. ``begun``: version -> rewards of the samples that its
    instance has begun ahead, by their places."""

    faults: Faults = field(default_factory=lambda: Faults(random.Random(0)))
    trained: dict[int, str] = field(default_factory=dict)
    generated: dict[str, int] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    begun: dict[int, dict[int, float]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    steers: list[SteerRequest] = field(default_factory=list)
    broken: RlhflessError | None = None
    _running: dict[str, ScriptedRollout] = field(default_factory=dict)
    _training: bool = False

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        self.requests.append(request)
        if self.broken is not None:
            raise self.broken
        if self.faults.strikes(self.faults.refused):
            raise CapacityError("no room")
        if isinstance(request, RolloutRequest):
            async for frame in self._rollout(request):
                yield frame
            return
        training = isinstance(request, GradientsRequest | TrainRequest)
        assert not (training and self._training), "the training function serves one call at a time"
        self._training |= training
        try:
            await asyncio.sleep(UNARY_S)
        finally:
            self._training &= not training
        if self.faults.strikes(self.faults.lost):
            self.begun.clear()
            raise TransientError("the instance died before it began")
        result = self._unary(request)
        # The work is done; its answer may still be lost on the way.
        if self.faults.strikes(self.faults.lost):
            raise TransientError("the instance died")
        yield Heartbeat(busy_s=UNARY_S)
        yield result

    async def _rollout(self, request: RolloutRequest) -> AsyncGenerator[AnyFrame]:
        call = self._running[request.call.id] = ScriptedRollout(
            request, self.faults, self.generated
        )
        try:
            async for frame in call.frames():
                yield frame
        finally:
            del self._running[request.call.id]

    async def steer(self, request: SteerRequest) -> bool:
        self.steers.append(request)
        await asyncio.sleep(STEER_S)
        call = self._running.get(request.target)
        return call is not None and call.steer(request)

    def _unary(self, request: Request) -> AnyFrame:
        if isinstance(request, RewardRequest):
            scores = [float(len(ids) % 2) for ids in request.completion_ids]
            return RewardDone(scores=[scores for _ in request.functions], totals=scores)
        if isinstance(request, LogprobsRequest):
            count = sum(map(len, request.responses))
            return LogprobsDone(logprobs=array.array("f", [-1.5] * count).tobytes())
        if isinstance(request, TrainRequest):
            return self._train(request)
        if isinstance(request, GradientsRequest):
            return self._begin(request)
        assert isinstance(request, ExportRequest)
        if request.store_prefix is not None:
            made = Checkpoint(
                step=request.call.step,
                version=request.model.version,
                created_at=0.0,
                files=[],
                metrics=request.metrics,
                final=request.final,
            )
            commit_checkpoint(ObjectStore(request.call.store), request.store_prefix, made)
        return ExportDone(folder=request.folder, files=["model.safetensors"])

    def _train(self, request: TrainRequest) -> TrainDone:
        version = request.model.version + 1
        maker = self.trained.setdefault(version, request.call.id)
        if maker != request.call.id:
            raise ConflictError(f"version {version} was made by {maker}")
        batch = read_batch(ObjectStore(request.call.store), request.batch)
        self.batches.setdefault(request.call.id, batch)
        metrics = {"policy/kl": 0.0, "policy/grad_norm": 1.0}
        return TrainDone(version=version, metrics=metrics, train_s=0.005)

    def _begin(self, request: GradientsRequest) -> GradientsDone:
        version = request.model.version + 1
        if version in self.trained:
            return GradientsDone()
        part = decode_batch(request.batch)
        assert part.groups.tolist() == [request.groups[i] for i in request.samples]
        begun = self.begun.setdefault(version, {})
        rewards = part.rewards.tolist()
        begun.update(zip(request.samples, rewards, strict=True))
        return GradientsDone(num_samples=len(begun))

    async def scale(self, function: FunctionName, count: int) -> None:
        pass

    def instances(self) -> tuple[Instance, ...]:
        return ()

    async def close(self) -> None:
        pass
