"""A platform whose functions are small scripts on the loop's clock, with faults on demand.

A sample's tokens follow from its seed alone, as with the real engine, so whatever is lost on the
way, the step must end with the same samples. The training script keeps versions by compare-and-
swap and counts optimizer steps.
"""

from __future__ import annotations

import array
import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from controller.platforms.base import Instance
from rlhfless.batches import Batch, read_batch
from rlhfless.errors import CapacityError, ConflictError, RlhflessError, TransientError
from rlhfless.messages import (
    AnyFrame,
    Drain,
    ExportDone,
    ExportRequest,
    Finished,
    FunctionName,
    Heartbeat,
    LogprobsDone,
    LogprobsRequest,
    Request,
    RewardDone,
    RewardRequest,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    Tokens,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore
from rlhfless.seeds import uniform

ITERATION_S = 0.01


def sample_length(task: SampleTask) -> int:
    """Long-tailed: mostly short, a few up to the limit."""
    return max(1, min(task.max_tokens, int(2 / (1.001 - uniform(task.seed, 1 << 20)))))


def sample_token(task: SampleTask, position: int) -> int:
    return 4 + int(uniform(task.seed, position) * 60)


@dataclass
class Faults:
    """Chances, per frame of a rollout or per call of another function, of something going wrong."""

    rng: random.Random
    lost: float = 0.0
    drained: float = 0.0
    refused: float = 0.0
    repeated: float = 0.0

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance


@dataclass
class ScriptedPlatform:
    """``trained``: version -> the call that made it; ``batches``: that call -> what it was given.
    ``generated``: tokens each sample id cost."""

    faults: Faults = field(default_factory=lambda: Faults(random.Random(0)))
    trained: dict[int, str] = field(default_factory=dict)
    generated: dict[str, int] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    broken: RlhflessError | None = None

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
        await asyncio.sleep(0.005)
        if self.faults.strikes(self.faults.lost):
            raise TransientError("the instance died before it began")
        result = self._unary(request)
        # The work is done; its answer may still be lost on the way.
        if self.faults.strikes(self.faults.lost):
            raise TransientError("the instance died")
        yield Heartbeat(busy_s=0.005)
        yield result

    async def _rollout(self, request: RolloutRequest) -> AsyncGenerator[AnyFrame]:
        held = [len(task.tokens) for task in request.samples]
        live = list(range(len(request.samples)))
        iterations = tokens = 0
        while live:
            await asyncio.sleep(ITERATION_S)
            iterations += 1
            if self.faults.strikes(self.faults.lost):
                raise TransientError("the stream broke")
            if self.faults.strikes(self.faults.drained):
                yield Drain(reason="SIGTERM")
                yield RolloutDone(unfinished=live, iterations=iterations, generated_tokens=tokens)
                return
            yield self._frame(request, live, held)
            if self.faults.strikes(self.faults.repeated):
                yield self._frame(request, live, held)
            for index in live:
                task = request.samples[index]
                self.generated[task.id] = self.generated.get(task.id, 0) + 1
                held[index] += 1
            tokens += len(live)
            ended = [i for i in live if held[i] >= sample_length(request.samples[i])]
            if ended:
                yield Finished(
                    samples=ended,
                    reasons=[
                        "length" if held[i] == request.samples[i].max_tokens else "stop"
                        for i in ended
                    ],
                )
                live = [i for i in live if i not in ended]
        yield Heartbeat(busy_s=iterations * ITERATION_S)
        yield RolloutDone(
            iterations=iterations,
            generated_tokens=tokens,
            decode_s=iterations * ITERATION_S,
            prefill_computed=sum(map(len, request.prompts)),
        )

    def _frame(self, request: RolloutRequest, live: list[int], held: list[int]) -> Tokens:
        tokens = [sample_token(request.samples[i], held[i]) for i in live]
        return Tokens(
            samples=list(live),
            starts=[held[i] for i in live],
            counts=[1] * len(live),
            tokens=tokens,
            logprobs=array.array("f", [-1.0] * len(live)).tobytes(),
            version=request.model.version,
        )

    def _unary(self, request: Request) -> AnyFrame:
        if isinstance(request, RewardRequest):
            scores = [float(len(ids) % 2) for ids in request.completion_ids]
            return RewardDone(scores=[scores for _ in request.functions], totals=scores)
        if isinstance(request, LogprobsRequest):
            count = sum(map(len, request.responses))
            return LogprobsDone(logprobs=array.array("f", [-1.5] * count).tobytes())
        if isinstance(request, TrainRequest):
            return self._train(request)
        assert isinstance(request, ExportRequest)
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

    async def scale(self, function: FunctionName, count: int) -> None:
        pass

    def instances(self) -> tuple[Instance, ...]:
        return ()

    async def close(self) -> None:
        pass
