"""One update: what it may depend on, and what it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from functions.training.learner import Learner
from functions.training.minibatches import minibatches
from functions.training.update import Update
from rlhfless.batches import Batch
from rlhfless.errors import InternalError, UserError
from rlhfless.messages import Algorithm, BatchRef, CallInfo, ModelRef, Optimization, TrainRequest
from tests.support.training import GRPO, LORA, PPO, SETTINGS, make_batch, reorder

KL_LOSS = msgspec.structs.replace(GRPO, kl_coefficient=0.1)
KL_REWARD = msgspec.structs.replace(GRPO, kl_coefficient=0.1, kl_placement="reward")


class Run:
    """A learner after one update, and the update's metrics."""

    def __init__(
        self,
        model: Path,
        *,
        algorithm: Algorithm = GRPO,
        settings: Optimization = SETTINGS,
        batch: Batch | None = None,
        version: int = 0,
        seed: int = 5,
    ) -> None:
        torch.set_num_threads(1)
        request = TrainRequest(
            call=CallInfo(id="c", job="j", step=0, deadline_s=1, store="memory://"),
            model=ModelRef(path=str(model), job="j", version=version),
            batch=BatchRef(name="b", sha256="", num_samples=0),
            algorithm=algorithm,
            optimization=settings,
            seed=seed,
            max_tokens=12,
        )
        batch = batch or make_batch(reference=algorithm.kl_coefficient > 0)
        self.learner = Learner(request, torch.device("cpu"), seed)
        self.before = self.weights()
        work = Update(self.learner, request, batch).run()
        self.pauses = 0
        while True:
            try:
                next(work)
                self.pauses += 1
            except StopIteration as end:
                self.metrics: dict[str, float] = end.value
                return

    def weights(self) -> dict[str, Tensor]:
        found = {n: p.detach().clone() for n, p in self.learner.policy.model.named_parameters()}
        if self.learner.critic is not None:
            critic = self.learner.critic.named_parameters()
            found |= {f"critic.{n}": p.detach().clone() for n, p in critic}
        return found

    def changed(self) -> set[str]:
        return {n for n, p in self.weights().items() if not torch.equal(p, self.before[n])}


def assert_same(one: Run, other: Run) -> None:
    """Equal up to rounding. Adam divides by the gradient's size, so where a gradient is near zero
    its rounding can turn a step; the tolerance is a hundredth of a step of 1e-3."""
    assert one.changed() and one.changed() == other.changed()
    for name, tensor in one.weights().items():
        torch.testing.assert_close(tensor, other.weights()[name], rtol=0, atol=1e-5)


def change(settings: Optimization, **fields: Any) -> Optimization:
    return msgspec.structs.replace(settings, epsilon=1e-4, **fields)


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO,
        PPO,
        KL_LOSS,
        KL_REWARD,
        msgspec.structs.replace(GRPO, loss_aggregation="sequence_mean", entropy_coefficient=0.1),
        Algorithm(name="dr_grpo", advantage="group_mean", loss_aggregation="sequence_sum"),
    ],
    ids=["grpo", "ppo", "kl_loss", "kl_reward", "sequence_mean", "sequence_sum"],
)
def test_microbatches_do_not_change_the_update(tiny_model_dir: Path, algorithm: Algorithm) -> None:
    few, many = (
        Run(
            tiny_model_dir,
            algorithm=algorithm,
            settings=change(SETTINGS, passes=2, tokens_per_microbatch=tokens),
        )
        for tokens in (100_000, 24)
    )
    assert many.pauses >= 2 * few.pauses
    assert_same(few, many)
    for name, value in few.metrics.items():
        assert many.metrics[name] == pytest.approx(value, rel=1e-2, abs=1e-4), name


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_packing_does_not_change_the_update(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm
) -> None:
    settings = change(SETTINGS)
    packed = Run(tiny_model_dir, settings=settings, algorithm=algorithm)
    assert packed.learner.policy.packs
    for module in ("policy", "critic"):
        monkeypatch.setattr(f"functions.training.{module}.enable_packing", lambda *_: False)
    plain = Run(tiny_model_dir, settings=settings, algorithm=algorithm)
    assert not plain.learner.policy.packs
    assert_same(packed, plain)


def test_order_within_a_minibatch_does_not_change_the_update(tiny_model_dir: Path) -> None:
    settings = change(SETTINGS, minibatches=1)
    batch = make_batch(1)
    order = np.random.default_rng(0).permutation(batch.num_samples).tolist()
    assert_same(
        Run(tiny_model_dir, settings=settings, batch=batch),
        Run(tiny_model_dir, settings=settings, batch=reorder(batch, order)),
    )


def test_first_minibatch_needs_no_extra_forward_pass(tiny_model_dir: Path) -> None:
    one = Run(tiny_model_dir, settings=change(SETTINGS, minibatches=1))
    assert one.pauses == 1  # a single pass over everything
    assert one.metrics["policy/ratio_max"] == 1.0
    assert one.metrics["policy/kl"] == 0.0
    two = Run(tiny_model_dir, settings=change(SETTINGS, minibatches=2))
    assert two.pauses == 3
    assert two.metrics["policy/ratio_max"] > 1.0
    assert two.metrics["policy/kl"] > 0.0


def test_policy_gradient_points_at_the_better_responses(tiny_model_dir: Path) -> None:
    batch = make_batch(2, groups=1)
    run = Run(tiny_model_dir, batch=batch, settings=change(SETTINGS, minibatches=1, passes=4))
    again = Run(tiny_model_dir, batch=batch, settings=change(SETTINGS, minibatches=1))
    assert run.metrics["policy/loss"] < again.metrics["policy/loss"]


def test_minibatches_partition_each_pass_and_follow_the_seed() -> None:
    groups = np.repeat(np.arange(6, dtype=np.int32), 4)
    parts = list(minibatches(groups, 3, 2, seed=1))
    assert len(parts) == 6
    for number in range(2):
        assert sorted(np.concatenate(parts[3 * number : 3 * number + 3])) == list(range(24))
    assert all(len(set(groups[part])) == 2 for part in parts)  # whole groups where they fit
    orders = [np.concatenate(list(minibatches(groups, 3, 1, seed=s))).tolist() for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_top_layers_change_these_tensors_only(tiny_model_dir: Path) -> None:
    run = Run(tiny_model_dir, settings=change(SETTINGS, trainable="top_layers", top_layers=1))
    assert run.changed() == {
        n for n in run.before if n.startswith(("model.layers.1.", "model.norm."))
    }
    assert run.learner.policy.tensors().keys() == run.changed()
    with pytest.raises(UserError, match="2 layers, 3 cannot"):
        Run(tiny_model_dir, settings=change(SETTINGS, trainable="top_layers", top_layers=3))


def test_lora_changes_adapters_only(tiny_model_dir: Path) -> None:
    run = Run(tiny_model_dir, settings=LORA)
    assert run.changed() and all(".lora_" in name for name in run.changed())
    with pytest.raises(UserError, match="cannot add LoRA"):
        Run(tiny_model_dir, settings=change(LORA, lora_targets=["nothing"]))


@pytest.mark.parametrize("trainable", ["full", "lora", "top_layers"])
def test_gradient_checkpointing_does_not_change_the_update(
    tiny_model_dir: Path, trainable: str
) -> None:
    extra = {"top_layers": 1} if trainable == "top_layers" else {}
    settings = change(LORA, trainable=trainable, **extra)
    run = Run(tiny_model_dir, settings=change(settings, gradient_checkpointing=True))
    assert run.learner.policy.plain.is_gradient_checkpointing
    assert_same(Run(tiny_model_dir, settings=settings), run)


def test_autocast_is_near_and_keeps_float32_masters(tiny_model_dir: Path) -> None:
    plain = Run(tiny_model_dir)
    cast = Run(tiny_model_dir, settings=change(SETTINGS, autocast="bfloat16"))
    assert all(p.dtype == torch.float32 for p in cast.weights().values())
    assert cast.metrics["policy/entropy"] == pytest.approx(
        plain.metrics["policy/entropy"], rel=0.02
    )
    assert cast.metrics["policy/entropy"] != plain.metrics["policy/entropy"]


def test_value_warm_up_trains_the_critic_alone(tiny_model_dir: Path) -> None:
    algorithm = msgspec.structs.replace(PPO, value_warmup_steps=1)
    warming = Run(tiny_model_dir, algorithm=algorithm)
    assert warming.changed() and all(name.startswith("critic.") for name in warming.changed())
    assert warming.metrics["policy/learning_rate"] == 0.0
    assert warming.metrics["value/loss"] > 0
    after = Run(tiny_model_dir, algorithm=algorithm, version=1)
    assert not all(name.startswith("critic.") for name in after.changed())


def test_critic_starts_at_zero_and_learns_the_returns(tiny_model_dir: Path) -> None:
    settings = change(SETTINGS, minibatches=1, passes=40)
    algorithm = msgspec.structs.replace(PPO, value_clip=None, value_learning_rate=3e-3)
    batch = make_batch(4)
    first = Run(tiny_model_dir, algorithm=algorithm, settings=change(SETTINGS), batch=batch)
    assert first.metrics["value/explained_variance"] == pytest.approx(0)
    long = Run(tiny_model_dir, algorithm=algorithm, settings=settings, batch=batch)
    assert long.metrics["value/loss"] < 0.5 * first.metrics["value/loss"]


def test_metrics_have_their_public_names(tiny_model_dir: Path) -> None:
    algorithm = msgspec.structs.replace(PPO, kl_coefficient=0.1)
    assert set(Run(tiny_model_dir, algorithm=algorithm).metrics) == {
        "policy/loss",
        "policy/kl",
        "policy/entropy",
        "policy/clip_fraction",
        "policy/grad_norm",
        "policy/learning_rate",
        "policy/ratio_max",
        "reference/kl",
        "mismatch/kl",
        "mismatch/max_abs_logprob_diff",
        "advantages/mean",
        "advantages/std",
        "value/loss",
        "value/explained_variance",
        "reward/frac_zero_std_groups",
        "training/overlapped_share",
        "training/overlapped_s",
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_refused(tiny_model_dir: Path, value: float) -> None:
    batch = make_batch()
    batch.rewards[3] = value
    with pytest.raises(UserError, match="reward of sample 3 is"):
        Run(tiny_model_dir, batch=batch)


def test_a_loss_that_is_no_number_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(InternalError, match=r"policy step 1.*version 1") as caught:
        Run(tiny_model_dir, settings=change(SETTINGS, learning_rate=1e38))
    assert caught.value.hint is not None and "learning rate" in caught.value.hint


def test_sequences_the_model_cannot_take_are_refused(tiny_model_dir: Path) -> None:
    batch = make_batch()
    batch.response_tokens[0] = 64
    with pytest.raises(UserError, match="vocabulary of 64"):
        Run(tiny_model_dir, batch=batch)
    with pytest.raises(UserError, match="context is 256"):
        Run(tiny_model_dir, batch=make_batch(longest=600))


def test_a_penalty_without_reference_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(InternalError, match="reference"):
        Run(tiny_model_dir, algorithm=KL_LOSS, batch=make_batch())
