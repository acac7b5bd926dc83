"""What functions other than rollout do on a simulated instance: time passes, results are made up.

Rewards are 1 for responses of an odd number of tokens and 0 for others, log-probs are 0: no policy
looks at them. Versions are real: their manifests lie in the job's object store and are committed
by compare-and-swap, so that a repeated or late call is what it is with the training function.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from rlhfless.batches import Batch, decode_batch, read_batch
from rlhfless.errors import InternalError
from rlhfless.messages import (
    AnyFrame,
    ExportDone,
    ExportRequest,
    GradientsDone,
    GradientsRequest,
    LogprobsDone,
    LogprobsRequest,
    PrefillDone,
    PrefillRequest,
    RewardDone,
    RewardRequest,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, commit, committed
from simulator.platform.costs import Costs, sequence_lengths
from simulator.platform.instance import SimulatedInstance
from simulator.platform.network import Network
from simulator.platform.prefixes import PrefixStore, PrefixUsed
from simulator.roofline.operators import Array

Unary = (
    RewardRequest
    | LogprobsRequest
    | PrefillRequest
    | TrainRequest
    | GradientsRequest
    | ExportRequest
)


@dataclass
class Work:
    """``do`` a request on an instance; raises ``TransientError`` if that goes away."""

    costs: Costs
    network: Network
    objects: ObjectStore
    prefixes: PrefixStore
    _updates_s: list[float] = field(default_factory=list)
    """Since the last checkpoint: what a training instance that takes over has to do again."""

    async def do(self, instance: SimulatedInstance, request: Unary) -> AnyFrame:
        match request:
            case RewardRequest():
                return await self._reward(instance, request)
            case LogprobsRequest():
                return await self._refer(instance, request)
            case PrefillRequest():
                return await self._prefill(instance, request)
            case TrainRequest():
                return await self._train(instance, request)
            case GradientsRequest():
                return await self._begin(instance, request)
            case ExportRequest():
                await self.network.transfer(self.costs.version_bytes, instance.bandwidth)
                return ExportDone(folder=request.folder, files=["model.safetensors"])
            case _:
                assert_never(request)

    async def _reward(self, instance: SimulatedInstance, request: RewardRequest) -> RewardDone:
        lengths = np.array([len(ids) for ids in request.completion_ids], np.float64)
        await instance.work(self.costs.reward_s(instance.pool, lengths))
        scores: list[float | None] = [float(len(ids) % 2) for ids in request.completion_ids]
        weights = sum(function.weight for function in request.functions)
        return RewardDone(
            scores=[scores for _ in request.functions],
            totals=[weights * (score or 0.0) for score in scores],
        )

    async def _refer(self, instance: SimulatedInstance, request: LogprobsRequest) -> LogprobsDone:
        lengths = sequence_lengths(
            [len(prompt) for prompt in request.prompts],
            [len(response) for response in request.responses],
        )
        assert instance.pool is not None
        await instance.work(self.costs.reference_s(instance.pool, lengths))
        return LogprobsDone(logprobs=bytes(4 * sum(map(len, request.responses))))

    async def _prefill(self, instance: SimulatedInstance, request: PrefillRequest) -> PrefillDone:
        pulled, pull_s = await instance.pull(request.model.version)
        used = PrefixUsed()
        prompts = [
            prompt[: ends[-1]] for prompt, ends in zip(request.prompts, request.cuts, strict=True)
        ]
        cached = await self.prefixes.fetch(instance, used, prompts, request.cuts, load=True)
        assert instance.pool is not None
        new = np.array(
            [len(p) - known for p, known in zip(prompts, cached, strict=True)], np.float64
        )
        seconds = self.costs.engine(instance.pool).prefill_s(new, np.array(cached, np.float64))
        await instance.work(seconds)
        await self.prefixes.publish(instance, used, prompts, request.cuts)
        return PrefillDone(
            tokens_computed=int(new.sum()),
            tokens_loaded=used.loaded_tokens,
            prefill_s=instance.slow * seconds,
            published_bytes=used.published_bytes,
            publish_s=used.publish_s,
            weights_pull_s=pull_s,
            weights_bytes=round(pulled),
        )

    async def _train(self, instance: SimulatedInstance, request: TrainRequest) -> TrainDone:
        loop = asyncio.get_running_loop()
        version = request.model.version + 1
        made = committed(self.objects, request.call.job, version, request.call.id)
        if made is not None:
            return TrainDone(version=version, metrics=made.metrics, repeated=True)
        restore_s = await self._restore(instance, request.model.version)
        lengths = _lengths(read_batch(self.objects, request.batch))
        begun = instance.begun[1] if instance.begun[0] == version else {}
        ahead = sum(begun.values()) / max(1.0, float(lengths.sum()))
        assert instance.pool is not None
        began_s = loop.time()
        await instance.work(self.costs.update_s(instance.pool, lengths, min(1.0, ahead)))
        train_s = loop.time() - began_s
        began_s = loop.time()
        await self._publish(instance, checkpoint=request.checkpoint)
        metrics = {"policy/kl": 0.0, "policy/grad_norm": 1.0}
        if begun:
            metrics["training/overlapped_share"] = min(1.0, ahead)
        manifest = Manifest(
            job=request.call.job,
            version=version,
            parent=version - 1,
            call_id=request.call.id,
            kind="full",
            tensors={},
            files={},
            attachments={"optimizer": "optimizer"} if request.checkpoint else {},
            metrics=metrics,
        )
        _, mine = commit(self.objects, manifest)
        instance.version = version
        instance.begun = (0, {})
        self._updates_s = [] if request.checkpoint else [*self._updates_s, train_s]
        return TrainDone(
            version=version,
            metrics=metrics,
            repeated=not mine,
            train_s=train_s,
            publish_s=loop.time() - began_s,
            restore_s=restore_s,
        )

    async def _begin(self, instance: SimulatedInstance, request: GradientsRequest) -> GradientsDone:
        version = request.model.version + 1
        if committed(self.objects, request.call.job, version, _train_call(request)) is not None:
            return GradientsDone()
        await self._restore(instance, request.model.version)
        if instance.begun[0] != version:
            instance.begun = (version, {})
        begun = instance.begun[1]
        lengths = _lengths(decode_batch(request.batch))
        if len(lengths) != len(request.samples):
            raise InternalError("a part of a batch has another number of samples than places")
        new = [i for i, place in enumerate(request.samples) if place not in begun]
        assert instance.pool is not None
        await instance.work(self.costs.gradients_s(instance.pool, lengths[new]))
        begun.update((request.samples[i], int(lengths[i])) for i in new)
        return GradientsDone(num_samples=len(begun))

    async def _restore(self, instance: SimulatedInstance, version: int) -> float:
        """An instance that did not make the version reads the last checkpoint and replays."""
        if instance.version == version:
            return 0.0
        began_s = asyncio.get_running_loop().time()
        await self.network.transfer(self.costs.checkpoint_bytes, instance.bandwidth)
        await instance.work(sum(self._updates_s))
        instance.version = version
        return asyncio.get_running_loop().time() - began_s

    async def _publish(self, instance: SimulatedInstance, *, checkpoint: bool) -> None:
        measured = self.costs.publish_s()
        if measured is not None:
            await instance.work(measured)
            return
        num_bytes = self.costs.version_bytes
        num_bytes += self.costs.checkpoint_bytes if checkpoint else 0.0
        await self.network.transfer(num_bytes, instance.bandwidth)


def _lengths(batch: Batch) -> Array:
    return sequence_lengths(batch.prompt_lengths, batch.response_lengths)


def _train_call(request: GradientsRequest) -> str:
    """The id of the call that will finish what this one begins."""
    return f"{request.call.id.rsplit('/', 1)[0]}/train"
