"""Several workers make the update that one makes: the same version, the same metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from functions.packing import Sequences
from functions.training import ahead
from functions.training.division import divide
from functions.training.group import SOLO, Group
from functions.training.learner import Learner
from functions.training.shards import gather, slice_of
from functions.training.update import Update
from rlhfless.batches import Batch, decode_batch
from rlhfless.messages import (
    Algorithm,
    BatchRef,
    CallInfo,
    GradientsRequest,
    ModelRef,
    Optimization,
    TrainRequest,
)
from tests.support.group import run_group
from tests.support.training import GRPO, LORA, PPO, SETTINGS, Job, make_batch


def calm(settings: Optimization = SETTINGS, **changes: Any) -> Optimization:
    """Where a gradient is near zero, its rounding would else turn a step of Adam."""
    return msgspec.structs.replace(settings, epsilon=1e-4, **changes)


Arrays: TypeAlias = dict[str, NDArray[np.float32]]
Updated: TypeAlias = tuple[Arrays, dict[str, float], int]
SETUPS: dict[str, tuple[Algorithm, Optimization]] = {
    "full": (GRPO, calm()),
    "two_passes": (GRPO, calm(passes=2, tokens_per_microbatch=40)),
    "ppo": (PPO, calm(passes=2)),
    "lora": (GRPO, calm(LORA)),
    "ppo_lora": (PPO, calm(LORA)),
    "top_layers": (GRPO, calm(trainable="top_layers", top_layers=1)),
    "kl_in_reward": (
        msgspec.structs.replace(GRPO, kl_coefficient=0.1, kl_placement="reward"),
        calm(),
    ),
    "kl_in_loss": (
        msgspec.structs.replace(GRPO, kl_coefficient=0.1, entropy_coefficient=0.1),
        calm(),
    ),
    "checkpointing": (GRPO, calm(gradient_checkpointing=True)),
    "checkpointing_lora": (GRPO, calm(LORA, gradient_checkpointing=True)),
    "value_warmup": (msgspec.structs.replace(PPO, value_warmup_steps=1), calm()),
    "grad_clip": (GRPO, calm(grad_clip=0.01)),
}


def request_of(model: Path, algorithm: Algorithm, settings: Optimization) -> TrainRequest:
    return TrainRequest(
        call=CallInfo(id="c", job="j", step=0, deadline_s=1, store="memory://"),
        model=ModelRef(path=str(model), job="j", version=0),
        batch=BatchRef(name="b", sha256="", num_samples=0),
        algorithm=algorithm,
        optimization=settings,
        seed=5,
        max_tokens=12,
    )


def finish(work: Any) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def updated(
    group: Group, request: TrainRequest, batch: Batch, begun: list[GradientsRequest]
) -> Updated:
    """Two updates; the tensors (and of PPO the critic's), the second's metrics, and how many
    numbers of parameters and optimizer state this worker held."""
    learner = Learner(request, torch.device("cpu"), 5, group)
    for each in begun:
        finish(ahead.begin(learner, each, decode_batch(each.batch)))
    metrics = finish(Update(learner, request, batch).run())
    again = msgspec.structs.replace(
        request, model=msgspec.structs.replace(request.model, version=1), seed=6
    )
    metrics |= {f"second/{k}": v for k, v in finish(Update(learner, again, batch).run()).items()}
    tensors = {name: gather(t).detach().float() for name, t in learner.policy.tensors().items()}
    state = learner.state()
    for label in ("optimizer", "critic", "critic_optimizer"):
        part = {n: t for n, t in state.get(label, {}).items() if not n.startswith("step/")}
        tensors |= {f"{label}.{name}": gather(t).detach() for name, t in part.items()}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}  # a pipe takes their bytes
    held = [*learner.policy.model.parameters(), *state["optimizer"].values()]
    return arrays, metrics, sum(slice_of(t).numel() for t in held)


def assert_same(
    one: Updated,
    other: Updated,
    atol: float = 2e-6,
    rtol: float = 1e-4,
) -> None:
    assert one[0].keys() == other[0].keys()
    for name, tensor in one[0].items():
        np.testing.assert_allclose(other[0][name], tensor, rtol=0, atol=atol, err_msg=name)
    assert one[1].keys() == other[1].keys()
    for name, value in one[1].items():
        if not name.endswith("overlapped_s"):
            assert other[1][name] == pytest.approx(value, rel=rtol, abs=1e-5), name


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("size", [2, 3])
def test_several_workers_make_the_update_of_one(
    tiny_model_dir: Path, setup: str, size: int
) -> None:
    torch.set_num_threads(1)
    algorithm, settings = SETUPS[setup]
    request = request_of(tiny_model_dir, algorithm, settings)
    batch = make_batch(reference=algorithm.kl_coefficient > 0)
    alone = updated(SOLO, request, batch, [])
    results = run_group(size, updated, request, batch, [])
    for result in results:
        assert_same(alone, result)
        assert result[2] < 0.75 * alone[2]  # sharded
    assert sum(result[2] for result in results) == alone[2] + (size - 1) * len(
        [n for n in alone[0] if n.startswith("optimizer.exp_avg/")]
    )


def test_autocast_is_as_near_to_one_worker_as_bfloat16_is(tiny_model_dir: Path) -> None:
    torch.set_num_threads(1)
    request = request_of(tiny_model_dir, GRPO, calm(autocast="bfloat16"))
    alone = updated(SOLO, request, make_batch(), [])
    first, second = run_group(2, updated, request, make_batch(), [])
    assert_same(first, second, atol=0.0, rtol=0.0)
    for name in ("policy/entropy", "policy/grad_norm", "mismatch/kl"):
        assert first[1][name] == pytest.approx(alone[1][name], rel=0.03), name


@pytest.mark.parametrize("workers", [2, 3])
def test_fewer_samples_than_workers_make_the_same_update(
    tiny_model_dir: Path, workers: int
) -> None:
    """Some minibatches give some workers nothing to do; one is empty."""
    torch.set_num_threads(1)
    batch = make_batch(3, groups=1, size=3)
    request = request_of(tiny_model_dir, PPO, calm(minibatches=2, passes=2))
    alone = updated(SOLO, request, batch, [])
    for result in run_group(workers, updated, request, batch, []):
        assert_same(alone, result)


@pytest.mark.parametrize("setup", ["full", "ppo", "lora", "kl_in_reward"])
def test_what_was_done_ahead_is_taken_up_by_all(tiny_model_dir: Path, setup: str) -> None:
    torch.set_num_threads(1)
    algorithm, settings = SETUPS[setup]
    request = request_of(tiny_model_dir, algorithm, settings)
    batch = make_batch(reference=algorithm.kl_coefficient > 0)
    job = Job(Path("unused"), tiny_model_dir, algorithm=algorithm, settings=settings)
    begun = [job.gradients_request(request, batch, groups) for groups in ([2], [0, 3])]
    alone = updated(SOLO, request, batch, [])
    results = run_group(2, updated, request, batch, begun)
    share = updated(SOLO, request, batch, begun)[1]["training/overlapped_share"]
    assert share > 0
    for result in results:
        assert result[1].pop("training/overlapped_share") == pytest.approx(share)
        assert_same((alone[0], without_share(alone[1]), 0), result)


def without_share(metrics: dict[str, float]) -> dict[str, float]:
    return {name: v for name, v in metrics.items() if name != "training/overlapped_share"}


def test_dropout_is_drawn_anew_by_each_worker_and_the_same_each_time(tiny_model_dir: Path) -> None:
    torch.set_num_threads(1)
    request = request_of(tiny_model_dir, GRPO, calm(LORA, lora_dropout=0.3))
    first, second = (run_group(2, updated, request, make_batch(), []) for _ in range(2))
    assert_same(first[0], second[0], atol=0.0, rtol=0.0)
    assert_same(first[0], first[1], atol=0.0, rtol=0.0)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(0, 60), max_size=6)), max_size=8),
    st.integers(1, 5),
    st.booleans(),
)
def test_every_sample_is_computed_by_one_worker(
    groups: list[tuple[int, list[int]]], size: int, packed: bool
) -> None:
    """``groups``: tokens of a prompt, and of each response to it."""
    members = [(g, tokens) for g, (_, lengths) in enumerate(groups) for tokens in lengths]
    sequences = Sequences(
        prompts=[np.zeros(groups[g][0], np.int32) for g, _ in members],
        responses=[np.zeros(tokens, np.int32) for _, tokens in members],
        starts=np.zeros(len(members), np.int64),
        groups=np.array([g for g, _ in members], np.int32),
    )
    samples = np.arange(len(members))
    parts = divide(sequences, samples, size, packed=packed)
    assert len(parts) == size
    assert sorted(i for part in parts for i in part.tolist()) == samples.tolist()
    whole = [len(sequences.prompts[i]) + len(sequences.responses[i]) for i in samples]
    loads = [sum(whole[i] for i in part) for part in parts]
    if not packed:  # Graham's bound for the largest-first rule
        best = max(sum(whole) / size, max(whole, default=0))
        assert max(loads) <= (4 / 3 + 1e-9) * best + max(whole, default=0) / 3


def test_groups_stay_together_where_that_is_less_work() -> None:
    long_prompts = Sequences(
        prompts=[np.zeros(100, np.int32)] * 8,
        responses=[np.zeros(10, np.int32)] * 8,
        starts=np.zeros(8, np.int64),
        groups=np.repeat(np.arange(2, dtype=np.int32), 4),
    )
    parts = divide(long_prompts, np.arange(8), 2, packed=True)
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    four = divide(long_prompts, np.arange(8), 4, packed=True)
    assert [len(part) for part in four] == [2, 2, 2, 2]  # whole groups would leave two idle
    assert all(len(set(long_prompts.groups[part])) == 1 for part in four)
