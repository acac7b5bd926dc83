import random
from statistics import median

import msgspec
import pytest

from scaling import cost_model as cm
from scaling.cost_model import KEEP, PRIORS, CostModel, CostState, Observation

TRUE = CostModel(
    coefficients={
        "decode": (0.01, 1e-4, 2e-8),
        "prefill": (0.02, 3e-5),
        "training": (1.0, 1e-4),
        "weights_pull": (0.05, 5e-9),
        "kv_load": (0.004, 2e-9),
        "kv_publish": (0.003, 4e-9),
    }
)


def calls_of_a_step(rng: random.Random, noise: float, outliers: float) -> list[Observation]:
    """Four actors' calls and a training call: true times, noisy, some stalled."""

    def measured(kind: cm.Kind, *features: float) -> Observation:
        seconds = TRUE.seconds(kind, *features) * rng.lognormvariate(0, noise)
        if rng.random() < outliers:
            seconds *= rng.uniform(3, 10)
        return Observation(kind, features, seconds)

    calls = []
    for _ in range(4):
        lengths = [min(2500, int(rng.lognormvariate(4.5, 1))) for _ in range(rng.randint(8, 40))]
        context = sum(64 * n + n * n / 2 for n in lengths)
        calls += [
            measured("decode", max(lengths), sum(lengths), context),
            measured("prefill", 1, rng.randint(100, 4000)),
            measured("weights_pull", 1, rng.randint(10**6, 10**8)),
            measured("kv_load", 1, rng.randint(10**5, 10**7)),
            measured("kv_publish", 1, rng.randint(10**5, 10**7)),
        ]
    return [*calls, measured("training", 1, rng.randint(20_000, 60_000))]


def test_worked_example() -> None:
    model = CostModel(coefficients={**PRIORS, "decode": (1.5e-3, 2e-5, 1e-7)})
    assert model.decode_s(60, 2000, 100_000) == pytest.approx(0.14)


def test_five_steps_are_enough_for_ten_percent() -> None:
    # 5 % noise and one call in ten stalled for three to ten times its length.
    found = []
    for seed in range(10):
        rng = random.Random(seed)
        state = CostState()
        for _ in range(5):
            state = cm.observe(state, calls_of_a_step(rng, 0.05, 0.1))
        found.append(cm.errors(cm.fit(state), calls_of_a_step(rng, 0.05, 0.1)))
    for metric in ("cost_model/error", "cost_model/decode_error", "cost_model/prefill_error"):
        assert median(errors[metric] for errors in found) < 0.1, metric
    assert max(errors["cost_model/error"] for errors in found) < 0.1


def test_before_data_the_priors_and_nothing_measured() -> None:
    model = cm.fit(CostState())
    assert model.measured == frozenset()
    assert dict(model.coefficients) == PRIORS
    assert model.cold_start_s("rollout") == cm.PRIOR_COLD_START_S
    assert cm.errors(model, [cm.prefill(100, 1.0)]) == {}


def test_errors_are_those_of_calls_not_seen() -> None:
    model = cm.fit(cm.observe(CostState(), [cm.training(1000, 2.0)]))
    assert cm.errors(model, [cm.training(1000, 4.0)]) == {
        "cost_model/training_error": pytest.approx(0.5),
        "cost_model/error": pytest.approx(0.5),
    }


def test_calls_that_did_nothing_are_left_out() -> None:
    idle = [cm.decode(0, 0, 0, 1.0), cm.prefill(0, 0.1), cm.kv_load(0, 0.0), cm.training(5, 0.0)]
    assert cm.observe(CostState(), idle) == CostState()


def test_state_is_bounded_and_survives_storage() -> None:
    many = [cm.prefill(i + 1, 1.0) for i in range(KEEP + 5)]
    state = cm.observe(CostState(), many, [("rollout", 3.0)] * 40)
    assert state.calls["prefill"] == many[5:]
    assert len(state.cold_starts["rollout"]) == cm.KEEP_COLD_STARTS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=CostState) == state


def test_cold_starts_are_medians_by_function() -> None:
    starts = [("rollout", 2.0), ("rollout", 90.0), ("rollout", 3.0), ("training", 8.0)]
    model = cm.fit(cm.observe(CostState(), (), starts))
    assert model.cold_start_s("rollout") == 3.0
    assert model.cold_start_s("training") == 8.0


def test_convenience_by_kind() -> None:
    assert TRUE.prefill_s(1000) == pytest.approx(0.05)
    assert TRUE.prefill_s(1000, calls=0) == pytest.approx(0.03)
    assert TRUE.training_s(10_000) == pytest.approx(2.0)
    assert TRUE.weights_pull_s(1e7) == pytest.approx(0.1)
    assert TRUE.kv_load_s(1e6) == pytest.approx(0.006)
    assert TRUE.kv_publish_s(1e6) == pytest.approx(0.007)


def test_overlap_can_do_all_of_one_optimizer_step_and_little_of_many() -> None:
    assert cm.ahead_share(1, 1) == 1.0
    assert cm.ahead_share(4, 1) == pytest.approx(0.4)
    assert cm.ahead_share(1, 2) == pytest.approx(0.5)
    assert cm.ahead_share(1, 1, gradients=False) == 0.0
    assert cm.ahead_share(4, 1, gradients=False) == pytest.approx(0.2)
