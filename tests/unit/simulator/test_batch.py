"""Continuous batching in stretches, against iterations that are counted one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.platform.batch import Batch, PromptKv, Row
from simulator.platform.costs import Limits
from tests.support.engines import PlainEngine

ROOMY = Limits(max_batch=64, kv_tokens=1 << 20, kv_token_bytes=1)


def run(batch: Batch, until_s: float = math.inf) -> dict[int, float]:
    """Row -> when it ended."""
    ends: dict[int, float] = {}
    while batch.stretch(until_s):
        batch.settle()
        for row in batch.ended:
            ends.setdefault(row.index, batch.at_s)
        batch.ended = []
    return ends


def rows_of(targets: list[int], prompt_tokens: int = 8, groups: int = 0) -> list[Row]:
    prompts = [PromptKv(prompt_tokens) for _ in range(groups or len(targets))]
    return [
        Row(index, prompts[index % len(prompts)], 0, target, 0, 0.0)
        for index, target in enumerate(targets)
    ]


def filled(rows: list[Row], engine: PlainEngine, limits: Limits = ROOMY) -> Batch:
    batch = Batch(engine, limits, 0.0)
    for row in rows:
        batch.join(row)
    return batch


def test_a_row_takes_an_iteration_a_token() -> None:
    # The chunk that prefills it gives the first token.
    ends = run(filled(rows_of([10]), PlainEngine(0.01)))
    assert ends == {0: pytest.approx(0.10)}


def test_rows_end_each_in_its_time() -> None:
    batch = filled(rows_of([10, 30, 20]), PlainEngine(0.01))
    assert run(batch) == {0: pytest.approx(0.1), 1: pytest.approx(0.3), 2: pytest.approx(0.2)}
    assert batch.counts.tokens == 60
    assert batch.kv_tokens == 3 * 8, "prompts stay, as nobody needs their room"


def test_attention_is_to_what_is_there() -> None:
    # One row, prompt 8: after the chunk it attends to 9 tokens, then 10.
    batch = filled(rows_of([3]), PlainEngine(0.0, context_s=1.0, token_s=0.0))
    run(batch)
    assert batch.at_s == pytest.approx(9 + 10)
    assert batch.counts.context_tokens == 8 + 9 + 10


def test_samples_of_a_prompt_share_its_prefill() -> None:
    alone = filled(rows_of([5] * 4), PlainEngine(token_s=1e-3))
    together = filled(rows_of([5] * 4, groups=1), PlainEngine(token_s=1e-3))
    run(alone)
    run(together)
    assert alone.counts.prefill_tokens == 32
    assert together.counts.prefill_tokens == 8
    assert together.kv_tokens == 8


def test_what_is_cached_is_not_computed() -> None:
    rows = rows_of([5])
    rows[0].prompt.cached = 6
    batch = filled(rows, PlainEngine())
    run(batch)
    assert batch.counts.prefill_tokens == 2


def test_rows_beyond_the_batch_wait() -> None:
    limits = Limits(max_batch=2, kv_tokens=1 << 20, kv_token_bytes=1)
    ends = run(filled(rows_of([10, 10, 10]), PlainEngine(0.01), limits))
    assert ends[2] > ends[0]
    assert ends[2] == pytest.approx(0.2)


def test_without_memory_the_last_row_goes_back_and_is_computed_again() -> None:
    # Two rows of 8 + 8 + 100 tokens do not fit into 150 together.
    limits = Limits(max_batch=8, kv_tokens=150, kv_token_bytes=1)
    batch = filled(rows_of([100, 100]), PlainEngine(0.01, token_s=1e-6), limits)
    ends = run(batch)
    assert set(ends) == {0, 1}
    assert batch.counts.preempted >= 1
    assert batch.counts.tokens == 200, "no token is generated twice"
    assert batch.counts.prefill_tokens > 16
    assert ends[1] > ends[0]


def test_prompts_that_nobody_needs_go_first() -> None:
    limits = Limits(max_batch=1, kv_tokens=60, kv_token_bytes=1)
    batch = filled(rows_of([20, 20, 20], prompt_tokens=20), PlainEngine(), limits)
    assert set(run(batch)) == {0, 1, 2}
    assert batch.counts.preempted == 0
    assert batch.counts.prefill_tokens == 60


def test_a_row_larger_than_the_memory_runs_alone() -> None:
    limits = Limits(max_batch=4, kv_tokens=50, kv_token_bytes=1)
    batch = filled(rows_of([100, 10]), PlainEngine(), limits)
    assert set(run(batch)) == {0, 1}


def test_a_row_that_leaves_is_gone_with_its_memory() -> None:
    rows = rows_of([100, 100])
    batch = filled(rows, PlainEngine(0.01))
    while batch.stretch(0.5):
        pass
    assert batch.generated(rows[1]) == 50
    batch.leave(rows[1])
    assert set(run(batch)) == {0}
    assert rows[1].generated == 50
    assert batch.counts.tokens == 150


def test_a_row_that_joins_later_does_not_run_before() -> None:
    batch = filled(rows_of([100]), PlainEngine(0.01))
    while batch.stretch(0.5):
        pass
    late = Row(1, PromptKv(8), 0, 10, 0, ready_s=0.5)
    batch.join(late)
    ends = run(batch)
    # The chunk that prefills it is an iteration for both, of twice the price here.
    assert ends[1] == pytest.approx(0.5 + 0.02 + 9 * 0.01)
    assert ends[0] == pytest.approx(1.01)


def test_rewinding_keeps_the_iterations_up_to_then() -> None:
    rows = rows_of([100])
    batch = filled(rows, PlainEngine(0.01))
    batch.stretch(math.inf)  # the chunk
    batch.stretch(math.inf)  # to the row's end
    assert batch.at_s == pytest.approx(1.0)
    batch.rewind(0.305)
    assert batch.at_s == pytest.approx(0.30)
    assert batch.generated(rows[0]) == 30
    assert batch.counts.iterations == 30
    assert run(batch) == {0: pytest.approx(1.0)}


def test_a_straggler_is_slower_by_its_factor() -> None:
    plain, slow = (filled(rows_of([10, 20]), PlainEngine(0.01)) for _ in range(2))
    slow.slow = 3.0
    run(plain)
    run(slow)
    assert slow.at_s == pytest.approx(3 * plain.at_s)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(70, 400),
    st.integers(1, 4),
    st.lists(st.floats(0.001, 0.4), max_size=6),
)
def test_stretches_come_to_the_same_however_they_are_cut(
    targets: list[int], rows: int, kv_tokens: int, groups: int, cuts: list[float]
) -> None:
    limits = Limits(rows, kv_tokens, 1)
    engine = PlainEngine(0.003, 0.0007, 2e-5, 1e-4)
    whole = filled(rows_of(targets, groups=groups), engine, limits)
    expected = run(whole)
    parts = filled(rows_of(targets, groups=groups), engine, limits)
    ends: dict[int, float] = {}
    for until_s in (*sorted(cuts), math.inf):
        ends |= run(parts, until_s)
    assert ends.keys() == expected.keys() == set(range(len(targets)))
    assert parts.counts.tokens == whole.counts.tokens == sum(targets)
    for index, end_s in expected.items():
        assert ends[index] == pytest.approx(end_s)
    assert whole.kv_tokens >= 0
    assert whole.running == whole.waiting == 0
