"""The simulated platform with probes on its instances, as ``tests/apps/probe.py`` on real ones.

What a probe is asked to do is put in words that the cost model knows: a prompt for each behaviour,
as many tokens as it is to take time, errors where the responses are looked up. In place of a
process's id frames have the number of the instance.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import msgspec
import numpy as np

from controller.dataset import Row
from controller.job import Prompt
from controller.ledger import Ledger
from controller.platforms.base import Deployment
from rlhfless.batches import Batch, write_batch
from rlhfless.errors import CapacityError, InternalError, RlhflessError, UserError
from rlhfless.measurements import Measurements
from rlhfless.messages import (
    AnyFrame,
    Progress,
    Request,
    RolloutRequest,
    Tokens,
    TrainRequest,
)
from rlhfless.spec import JobSpec
from simulator.fuzz.jobs import SHAPE, make_fuzz_cluster
from simulator.memory import MemoryObjects
from simulator.platform import SimulatedPlatform
from simulator.platform.costs import Costs
from simulator.platform.instance import SimulatedInstance
from simulator.platform.lengths import Responses
from simulator.scenario import Scenario
from simulator.workload import Lengths, PromptKeys

START_S, TOKEN_S = 0.5, 1e-3
TOKENS = {"echo": 1, "slow": 1_000_000, "steered": 1000}
"""By behaviour: how long a response is."""
ERRORS: dict[str, RlhflessError] = {
    "user": UserError("this cannot work"),
    "raise": InternalError("the handler is broken"),
    "oom": CapacityError("out of memory"),
}
PROMPTS = {
    behaviour: Prompt(f"p/{n}", Row(behaviour, {}, behaviour), (n,))
    for n, behaviour in enumerate((*TOKENS, *ERRORS))
}
MEASURED = Measurements.model_validate(
    {
        "rollout": {"decode": [TOKEN_S, 0, 0], "prefill": [TOKEN_S, 0], "weights_pull": [0, 0]},
        "training": {"update": [0.1, 0], "publish_s": 0.01, "weights_bytes": 1000},
        "cold_start_s": {"rollout": START_S, "training": START_S, "reward": START_S},
    }
)
SPEC = JobSpec.model_validate(
    {
        "model": {"path": "tiny"},
        "dataset": {"path": "train.jsonl"},
        "rewards": [{"python": "rewards.py:odd"}],
        "rollout": {"max_tokens": max(TOKENS.values())},
    }
)


class SimulatedProbes(SimulatedPlatform):
    """On four nodes of an accelerator each, which instances keep until they end. ``app`` "broken":
    functions do not start."""

    def __init__(self, deployments: Sequence[Deployment], ledger: Ledger, app: str) -> None:
        cluster = make_fuzz_cluster(4, "exclusive", 0.0, (0.0, 1.0))
        prompts = tuple(PROMPTS.values())
        costs = Costs(SPEC, cluster, Scenario(prompts, (), _Endless(), SHAPE, MEASURED))
        if app == "broken":
            costs.start_s = _cannot_start  # type: ignore[method-assign, assignment]
        self._objects = MemoryObjects()
        self._batch = write_batch(self._objects, "batch", _batch())
        responses = _Responses(_Endless(), prompts, 1)
        super().__init__(deployments, cluster, costs, responses, self._objects, ledger)

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        behaviour = request.call.job.partition(":")[0]
        if isinstance(request, RolloutRequest):
            samples = [
                msgspec.structs.replace(
                    task, id=f"{behaviour}/{task.id}", max_tokens=TOKENS.get(behaviour, 1)
                )
                for task in request.samples
            ]
            prompts = [list(PROMPTS[behaviour].tokens)]
            request = msgspec.structs.replace(
                request, prompts=prompts, samples=samples, progress_s=10 * TOKEN_S
            )
        elif isinstance(request, TrainRequest):
            request = msgspec.structs.replace(request, batch=self._batch)
        async with aclosing(super().invoke(request)) as frames:
            async for frame in frames:
                yield frame

    def lives(self, number: int) -> bool:
        return any(number_of(instance.id) == number for instance in self.instances())

    async def _rollout(
        self, instance: SimulatedInstance, request: RolloutRequest
    ) -> AsyncGenerator[AnyFrame]:
        number = number_of(instance.id)
        async with aclosing(super()._rollout(instance, request)) as frames:
            async for frame in frames:
                if isinstance(frame, Tokens):
                    frame = msgspec.structs.replace(frame, tokens=[number] * len(frame.tokens))
                elif isinstance(frame, Progress):
                    frame = msgspec.structs.replace(frame, kv_tokens=number)
                yield frame


class _Endless:
    """Lengths that only a sample's limit bounds."""

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:
        return np.full((len(prompts), group), max(TOKENS.values()), np.int64)


class _Responses(Responses):
    def keys(self, prompts: Iterable[Sequence[int]]) -> list[int]:
        asked = {tuple(prompt) for prompt in prompts}
        for behaviour, error in ERRORS.items():
            if PROMPTS[behaviour].tokens in asked:
                raise error
        return super().keys(asked)


def _batch() -> Batch:
    """One sample of two tokens, one of them its prompt."""
    one, ids = np.ones(1, np.int32), np.zeros(1, np.int32)
    zero = np.zeros(1, np.float32)
    return Batch(ids, one, ids, one, zero, zero, ids, np.zeros(1, np.bool_))


def _cannot_start(*_: object) -> float:
    raise InternalError("No module named 'a_module_that_is_not_there'")


def number_of(instance_id: str) -> int:
    return int(instance_id.rpartition("-")[2])
