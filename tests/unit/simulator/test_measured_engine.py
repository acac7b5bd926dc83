from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.measurements import Measurements, RolloutMeasured
from simulator.hardware import load_catalog
from simulator.measured_engine import MeasuredEngine
from simulator.model_shape import load_shape
from simulator.roofline import InferenceCost, fabric_of

ITERATION_S, ROW_S, CONTEXT_S = 2e-3, 3e-5, 1e-7


@pytest.fixture(scope="module")
def roofline() -> InferenceCost:
    catalog = load_catalog()
    h100 = catalog.accelerators["H100"]
    return InferenceCost(load_shape("Qwen/Qwen2.5-7B"), h100, fabric_of(catalog, h100))


@pytest.fixture(scope="module")
def engine(roofline: InferenceCost) -> MeasuredEngine:
    rollout = RolloutMeasured(decode=(ITERATION_S, ROW_S, CONTEXT_S), prefill=(4e-3, 5e-5))
    return MeasuredEngine(Measurements(rollout=rollout, reference=(0.01, 2e-5)), roofline)


def test_an_iteration_is_linear(engine: MeasuredEngine) -> None:
    assert engine.decode_s(8, 1000) == pytest.approx(ITERATION_S + 8 * ROW_S + 1000 * CONTEXT_S)
    assert engine.decode_s(0, 0) == 0.0
    # 8 rows, 3 draft tokens each: 32 rows of matrix products, the context read once.
    drafting = ITERATION_S + 32 * ROW_S + 1000 * CONTEXT_S
    assert engine.decode_s(8, 1000, drafted=3) == pytest.approx(drafting)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 40)),
        min_size=1,
        max_size=8,
    )
)
def test_rows_end_when_their_iterations_are_over(
    engine: MeasuredEngine, rows: list[tuple[int, int]]
) -> None:
    contexts = [context for context, _ in rows]
    remaining = [left for _, left in rows]
    seconds = []
    for iteration in range(max(remaining)):
        running = [c + iteration for c, left in rows if left > iteration]
        seconds.append(engine.decode_s(len(running), sum(running)))
    ends = list(accumulate(seconds))
    expected = [ends[left - 1] for left in remaining]
    found = engine.finish_s(np.array(contexts, float), np.array(remaining, float))
    assert found == pytest.approx(expected)
    alone = engine.iterations_in(
        1,
        contexts[0],
        engine.decode_run_s(
            np.array(1.0), np.array(float(contexts[0])), np.array(float(remaining[0]))
        ).item(),
    )
    assert alone == remaining[0]


def test_prefill_is_by_pass_and_token(engine: MeasuredEngine) -> None:
    assert engine.prefill_s(np.array([100.0, 200.0])) == pytest.approx(4e-3 + 300 * 5e-5)
    assert engine.prefill_s(300.0, chunk=128) == pytest.approx(3 * 4e-3 + 300 * 5e-5)
    assert engine.prefill_s(0.0) == 0.0
    beside = engine.decode_s(2, 50)
    assert engine.chunk_s(64.0, 0.0, 2, 50) == pytest.approx(4e-3 + 64 * 5e-5 + beside)


def test_log_probs_are_by_call_and_token(engine: MeasuredEngine) -> None:
    assert engine.logprobs_s(np.array([10.0, 20.0])) == pytest.approx(0.01 + 30 * 2e-5)


def test_what_was_not_measured_is_the_rooflines(roofline: InferenceCost) -> None:
    engine = MeasuredEngine(Measurements(), roofline)
    lengths = np.array([100.0, 700.0])
    assert engine.decode_s(16, 4096) == roofline.decode_s(16, 4096)
    assert engine.prefill_s(lengths, 10.0) == roofline.prefill_s(lengths, 10.0)
    assert engine.chunk_s(64.0, 100.0, 4, 99) == roofline.chunk_s(64.0, 100.0, 4, 99)
    assert engine.logprobs_s(lengths) == roofline.logprobs_s(lengths)
    only = MeasuredEngine(
        Measurements(rollout=RolloutMeasured(decode=(ITERATION_S, ROW_S, CONTEXT_S))), roofline
    )
    assert only.chunk_s(64.0, 100.0, 4, 99) == pytest.approx(
        roofline.chunk_s(64.0, 100.0) + only.decode_s(4, 99)
    )
