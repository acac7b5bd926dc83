"""Work done ahead of a train call: it changes no result, whatever becomes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions.context import CallContext
from functions.training.forward import Forward
from functions.training.trainer import Trainer
from functions.weights.tensors import pull
from rlhfless.batches import Batch, encode_batch
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import Algorithm, Optimization, TrainDone
from rlhfless.versions import versions
from tests.support.training import GRPO, LORA, PPO, SETTINGS, Job, make_batch, new_trainer, reorder

# Adam divides by the gradient's size: with a small epsilon the rounding of a tiny one would show.
ONE = msgspec.structs.replace(SETTINGS, minibatches=1, epsilon=1e-4)
TWO = msgspec.structs.replace(ONE, minibatches=2)
DR_GRPO = Algorithm(name="dr_grpo", advantage="group_mean", loss_aggregation="sequence_sum")
RLOO = Algorithm(name="rloo", advantage="rloo", loss_aggregation="sequence_mean")
SHARE, SECONDS = "training/overlapped_share", "training/overlapped_s"


def change(terms: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(terms, **fields)


KL_LOSS = change(GRPO, kl_coefficient=0.1, entropy_coefficient=0.05)
KL_REWARD = change(GRPO, kl_coefficient=0.1, kl_placement="reward")
BATCH_NORM = Algorithm(name="reinforce_pp", advantage="batch_norm")
TOP = change(ONE, trainable="top_layers", top_layers=1)
DROPOUT = change(LORA, lora_dropout=0.3, epsilon=1e-4)


class Twin:
    """The same job twice: ``plain`` has nothing done ahead."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        algorithm: Algorithm = GRPO,
        terms: Optimization = ONE,
        batches: Callable[[int], Batch] | None = None,
    ) -> None:
        self.plain, self.ahead = (
            Job(folder / name, model, algorithm=algorithm, settings=terms)
            for name in ("plain", "ahead")
        )
        reference = algorithm.kl_coefficient > 0
        self.batch = batches or (lambda parent: make_batch(parent, reference=reference))
        self.trainer = new_trainer()
        self._plain_trainer = new_trainer()
        self.parent = 0

    def begin(self, groups: Sequence[int], batch: Batch | None = None) -> int:
        whole = self.batch(self.parent) if batch is None else batch
        train = self.ahead.request(self.parent, batch=self.batch(self.parent))
        return self.ahead.gradients(
            self.trainer, self.ahead.gradients_request(train, whole, groups)
        )

    def train(self) -> tuple[TrainDone, TrainDone]:
        """Both jobs' next version, which must be the same."""
        plain, ahead = (
            job.request(self.parent, batch=self.batch(self.parent))
            for job in (self.plain, self.ahead)
        )
        expected = self.plain.train(self._plain_trainer, plain)
        found = self.ahead.train(self.trainer, ahead)
        self.parent += 1
        self.assert_same_weights()
        for name in expected.metrics.keys() - {SHARE, SECONDS}:
            assert found.metrics[name] == pytest.approx(
                expected.metrics[name], rel=1e-3, abs=2e-5
            ), name
        assert found.metrics.keys() >= expected.metrics.keys()
        assert expected.metrics[SHARE] == expected.metrics[SECONDS] == 0
        return expected, found

    def assert_same_weights(self) -> None:
        one, other = (pull(job.store, job.name, self.parent)[1] for job in (self.plain, self.ahead))
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            # A step of Adam at 1e-3 moves most weights by about as much.
            torch.testing.assert_close(tensor, other[name], rtol=0, atol=2e-5)


def gradients(trainer: Trainer) -> list[torch.Tensor]:
    assert trainer._cached is not None
    model = trainer._cached.state.learner.policy.model
    return [p.grad for p in model.parameters() if p.grad is not None]


ALGORITHMS = {
    "grpo": GRPO,
    "grpo_clipped": change(GRPO, clip_low=0.01, clip_high=0.02, dual_clip=3.0),
    "dr_grpo": DR_GRPO,
    "rloo": RLOO,
    "kl_loss": KL_LOSS,
    "kl_reward": KL_REWARD,
    "sequence_mean": change(GRPO, loss_aggregation="sequence_mean"),
}
PARTS = {"some": [[2], [0, 3]], "all": [[1, 3], [0], [2]], "at_once": [[0, 1, 2, 3]]}


@pytest.mark.parametrize(
    ("algorithm", "minibatches", "parts"),
    [
        *((name, 1, "some") for name in ALGORITHMS),
        *((name, 3, "all") for name in ALGORITHMS),
        ("grpo", 1, "at_once"),
        ("grpo", 2, "some"),
        ("kl_reward", 2, "at_once"),
    ],
)
def test_a_step_begun_ahead_is_the_step(
    tmp_path: Path, tiny_model_dir: Path, algorithm: str, minibatches: int, parts: str
) -> None:
    terms = change(ONE, minibatches=minibatches, passes=1 if minibatches == 1 else 2)
    twin = Twin(tmp_path, tiny_model_dir, ALGORITHMS[algorithm], terms)
    for _ in range(2):
        begun = [twin.begin(groups) for groups in PARTS[parts]]
        assert begun == [4 * n for n in itertools.accumulate(map(len, PARTS[parts]))]
        _, found = twin.train()
        if parts != "some":
            assert found.metrics[SHARE] == 1.0
        else:
            assert 0 < found.metrics[SHARE] < 1
        assert found.metrics[SECONDS] > 0


@pytest.mark.parametrize(
    ("terms", "share"),
    [
        (change(LORA, minibatches=1, epsilon=1e-4), 1.0),
        (TOP, 1.0),
        (change(ONE, gradient_checkpointing=True), 1.0),
        (change(ONE, tokens_per_microbatch=24), 1.0),
        (change(TWO, tokens_per_microbatch=24, passes=3), 1.0),
        (change(DROPOUT, minibatches=1), 0.0),
        (change(DROPOUT, minibatches=2), 0.5),
    ],
    ids=["lora", "top_layers", "checkpointing", "small_passes", "passes", "dropout", "dropout_2"],
)
def test_whatever_is_trained(
    tmp_path: Path, tiny_model_dir: Path, terms: Optimization, share: float
) -> None:
    twin = Twin(tmp_path, tiny_model_dir, KL_LOSS, terms)
    for _ in range(3):
        twin.begin([1, 2])
        twin.begin([0, 3])
        _, found = twin.train()
        assert found.metrics[SHARE] == pytest.approx(share, abs=0.2 if share == 0.5 else 0)


@pytest.mark.parametrize(
    ("algorithm", "terms"),
    [
        (BATCH_NORM, ONE),
        (BATCH_NORM, TWO),
        (change(BATCH_NORM, kl_coefficient=0.1, kl_placement="reward"), ONE),
        (PPO, ONE),
        (PPO, change(TWO, passes=2)),
        (change(PPO, kl_coefficient=0.1, kl_placement="reward"), TWO),
        (change(PPO, value_warmup_steps=1), TWO),
    ],
)
def test_where_advantages_need_the_whole_batch_no_gradients_are_summed(
    tmp_path: Path, tiny_model_dir: Path, algorithm: Algorithm, terms: Optimization
) -> None:
    twin = Twin(tmp_path, tiny_model_dir, algorithm, terms)
    for step in range(2):
        twin.begin([3, 0])
        twin.begin([1])
        assert not gradients(twin.trainer)
        _, found = twin.train()
        expected = terms.minibatches > 1 or (step == 0 and algorithm.value_warmup_steps > 0)
        assert (found.metrics[SHARE] > 0) == expected


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_parts_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, data: st.DataObject
) -> None:
    """Groups of any sizes, cut by any minibatches, begun in any order, some twice, some never."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6), label="sizes")
    total = sum(sizes)
    whole = make_batch(
        data.draw(st.integers(0, 99), label="seed"), groups=len(sizes), size=max(sizes)
    )
    kept = [g * max(sizes) + k for g, size in enumerate(sizes) for k in range(size)]
    whole = reorder(whole, data.draw(st.permutations(kept), label="order"))
    terms = change(ONE, minibatches=data.draw(st.integers(1, min(3, total)), label="minibatches"))
    algorithm = data.draw(st.sampled_from([GRPO, DR_GRPO, RLOO]), label="algorithm")
    twin = Twin(tmp_path_factory.mktemp("any"), tiny_model_dir, algorithm, terms, lambda _: whole)
    some = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=4, unique=True)
    for groups in data.draw(st.lists(some, max_size=4), label="calls"):
        twin.begin(groups)
    twin.train()


# --- what may become of it ------------------------------------------------------------------------


@pytest.fixture
def twin(tmp_path: Path, tiny_model_dir: Path) -> Twin:
    return Twin(tmp_path, tiny_model_dir, GRPO, TWO)


def test_repeats_compute_nothing_twice(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    assert twin.begin([0, 1, 2, 3]) == 16
    before = [g.clone() for g in gradients(twin.trainer)]
    with monkeypatch.context() as patch:
        patch.delattr(Forward, "logprobs")
        assert twin.begin([0, 1, 2, 3]) == twin.begin([2]) == 16
    for one, other in zip(before, gradients(twin.trainer), strict=True):
        assert torch.equal(one, other)
    twin.train()


def test_a_call_that_comes_late_is_harmless(twin: Twin) -> None:
    twin.begin([0])
    train = twin.ahead.request(0, batch=twin.batch(0))
    late = twin.ahead.gradients_request(train, twin.batch(0), [1, 2])
    twin.train()
    assert twin.ahead.gradients(twin.trainer, late) == 0
    assert not gradients(twin.trainer)
    _, found = twin.train()
    assert "restore/replayed_versions" not in found.metrics  # the learner had been kept


def other_reward(batch: Batch) -> Batch:
    rewards = batch.rewards.copy()
    rewards[5] += 1.0
    return replace(batch, rewards=rewards)


def other_token(batch: Batch) -> Batch:
    """In one response of every group."""
    tokens = batch.response_tokens.copy()
    ends = np.cumsum(batch.response_lengths)[::4] - 1
    tokens[ends] = (tokens[ends] + 1) % 64
    return replace(batch, response_tokens=tokens)


@pytest.mark.parametrize("other", [other_reward, other_token])
def test_other_samples_than_were_begun(twin: Twin, other: Callable[[Batch], Batch]) -> None:
    twin.begin([0, 1, 2, 3], other(twin.batch(0)))
    _, found = twin.train()
    assert 0 < found.metrics[SHARE] < 1  # the old log-probs of those that are the same
    # and, noticed before the train call, all is begun anew
    twin.begin([0, 1, 2, 3], other(twin.batch(1)))
    twin.begin([0, 1, 2, 3])
    _, found = twin.train()
    assert found.metrics[SHARE] == 1


@pytest.mark.parametrize(
    "terms",
    [
        {"seed": 99},
        {"temperature": 0.7},
        {"algorithm": DR_GRPO},
        {"optimization": change(TWO, minibatches=1)},
    ],
    ids=lambda terms: next(iter(terms)),
)
def test_other_terms_than_the_train_call_has(twin: Twin, terms: dict[str, Any]) -> None:
    for parent in range(2):
        batch = twin.batch(parent)
        train = twin.ahead.request(parent, batch=batch)
        request = twin.ahead.gradients_request(train, batch, [0, 1])
        twin.ahead.gradients(twin.trainer, msgspec.structs.replace(request, **terms))
        _, found = twin.train()
        assert found.metrics[SHARE] == 0


def test_adapters_that_started_from_another_seed(tmp_path: Path, tiny_model_dir: Path) -> None:
    twin = Twin(tmp_path, tiny_model_dir, GRPO, LORA)
    batch = twin.batch(0)
    request = twin.ahead.gradients_request(twin.ahead.request(0, batch=batch), batch, [0, 1])
    twin.ahead.gradients(twin.trainer, msgspec.structs.replace(request, seed=99))
    twin.train()


def test_other_groups_than_the_batch_has(twin: Twin) -> None:
    batch = twin.batch(0)
    request = twin.ahead.gradients_request(twin.ahead.request(0, batch=batch), batch, [0, 1])
    more = msgspec.structs.replace(request, groups=[*request.groups, 4, 4])
    assert twin.ahead.gradients(twin.trainer, more) == 8
    _, found = twin.train()
    assert found.metrics[SHARE] == 0


def test_an_instance_lost_with_it(twin: Twin) -> None:
    for _ in range(2):
        twin.begin([0, 1, 2])
        twin.trainer = new_trainer()
        _, found = twin.train()
        assert found.metrics[SHARE] == 0
    # half of it lost, and noticed by the number of samples
    twin.begin([0, 1])
    twin.trainer = new_trainer()
    assert twin.begin([2]) == 4
    _, found = twin.train()
    assert found.metrics["restore/replayed_versions"] == 2  # told where they count
    assert 0 < found.metrics[SHARE] < 1


def test_a_repeated_train_call_returns_the_first_result(twin: Twin) -> None:
    twin.begin([0, 1, 2, 3])
    request = twin.ahead.request(0, batch=twin.batch(0))
    first = twin.ahead.train(twin.trainer, request)
    again = twin.ahead.train(twin.trainer, request)
    assert again.repeated and again.metrics == first.metrics
    assert versions(twin.ahead.store, twin.ahead.name) == [1]


def test_what_another_instance_trained_leaves_nothing_behind(twin: Twin) -> None:
    """This one begins a step, another makes it; this one then makes it again to go on from it."""
    twin.begin([0, 1, 2])
    begun, twin.trainer = twin.trainer, new_trainer()
    twin.train()
    twin.trainer = begun
    twin.train()
    assert not gradients(begun)


def test_another_job_in_between(twin: Twin, tmp_path: Path, tiny_model_dir: Path) -> None:
    twin.begin([0, 1])
    other = Job(tmp_path / "other", tiny_model_dir, name="other")
    other.train(twin.trainer, other.request(0))
    _, found = twin.train()
    assert found.metrics[SHARE] == 0


@pytest.mark.parametrize("reason", ["deadline", "drain", "abort"])
def test_told_to_stop_keeps_what_was_done(
    tmp_path: Path, tiny_model_dir: Path, reason: str
) -> None:
    twin = Twin(tmp_path, tiny_model_dir, GRPO, change(TWO, tokens_per_microbatch=16))
    batch = twin.batch(0)
    request = twin.ahead.gradients_request(twin.ahead.request(0, batch=batch), batch, [0, 1, 2, 3])
    for _ in range(4):  # each gets one pass further
        context = CallContext(store=twin.ahead.store, deadline=0.0)
        if reason != "deadline":
            context = twin.ahead.context()
            context.stop(reason)  # type: ignore[arg-type]
        with pytest.raises(TransientError, match=reason):
            list(twin.trainer.gradients(request, context))
    _, found = twin.train()
    assert 0 < found.metrics[SHARE] < 1


def test_abandoned_between_passes_keeps_what_was_done(twin: Twin, monkeypatch: Any) -> None:
    monkeypatch.setattr("functions.training.trainer.HEARTBEAT_S", 0.0)
    batch = twin.batch(0)
    request = twin.ahead.gradients_request(twin.ahead.request(0, batch=batch), batch, [0, 1, 2])
    frames = twin.trainer.gradients(request, twin.ahead.context())
    next(frames)
    frames.close()
    _, found = twin.train()
    assert 0 < found.metrics[SHARE] < 1


@pytest.mark.parametrize("then_begin", [False, True])
def test_a_pass_that_fails_spoils_nothing(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: Any, then_begin: bool
) -> None:
    twin = Twin(tmp_path, tiny_model_dir, GRPO, ONE)
    twin.begin([0])
    real, calls = torch.Tensor.backward, itertools.count()

    def fail_after(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        if next(calls) == 0:
            raise RuntimeError("out of memory, say")

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", fail_after)
        with pytest.raises(RuntimeError, match="out of memory"):
            twin.begin([1, 2, 3])
    if then_begin:
        twin.begin([1, 2])
    twin.train()


def test_the_memory_is_free_when_the_version_is_made(twin: Twin) -> None:
    twin.begin([0, 1, 2, 3])
    assert twin.trainer._cached is not None
    learner = twin.trainer._cached.state.learner
    held = gradients(twin.trainer)
    # one gradient for each parameter, where an update has it
    assert len(held) == len(learner.policy.trainable())
    assert learner.ahead is not None and not learner.ahead.torn
    del held
    twin.train()
    assert not gradients(twin.trainer) and learner.ahead is None


def test_mistakes_of_users_are_told_by_both_calls(twin: Twin) -> None:
    batch = twin.batch(0)
    batch.rewards[6] = np.nan
    with pytest.raises(UserError, match="reward of sample 2 is nan"):
        twin.begin([1], batch)  # its own numbering
    with pytest.raises(UserError, match="reward of sample 6 is nan"):
        twin.ahead.train(twin.trainer, twin.ahead.request(0, batch=batch))
    twin.train()


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        ([0, 1, 2], "divides a group"),
        ([0, 1, 2, 4], "groups"),
        ([0, 1, 2, 2], "numbered"),
        ([0, 1, 2, 16], "numbered"),
        ([-1, 1, 2, 3], "numbered"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(twin: Twin, samples: list[int], match: str) -> None:
    batch = twin.batch(0)
    request = twin.ahead.gradients_request(twin.ahead.request(0, batch=batch), batch, [0])
    if len(samples) == 3:
        request = msgspec.structs.replace(request, batch=encode_batch(reorder(batch, samples)))
    with pytest.raises(InternalError, match=match):
        twin.ahead.gradients(twin.trainer, msgspec.structs.replace(request, samples=samples))
    twin.train()
