"""Draft tokens by batch size."""

from __future__ import annotations

import pytest

from simulator.drafting import DraftedEngine, Drafting
from tests.support.engines import PlainEngine


def test_expected_tokens_of_an_iteration() -> None:
    assert Drafting(3, 0.7).yields(3) == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert Drafting(3, 0.0).yields(3) == 1
    assert Drafting(3, 1.0).yields(3) == 4


def test_many_drafts_in_the_tail_few_in_a_full_batch() -> None:
    engine = DraftedEngine(PlainEngine(iteration_s=0.02, row_s=2e-4), Drafting(7, 0.7))
    numbers = [engine.best(rows, 0.0)[0] for rows in (1, 8, 64, 256)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] >= 4
    assert numbers[-1] < numbers[0]


def test_drafts_that_are_never_accepted_are_not_made() -> None:
    plain = PlainEngine(iteration_s=0.02, row_s=1e-4, context_s=1e-7)
    engine = DraftedEngine(plain, Drafting(7, 0.0))
    assert engine.best(4, 1000.0) == (0, 1.0)
    assert engine.stretch_s(4, 1000.0, 50) == pytest.approx(plain.stretch_s(4, 1000.0, 50))


def test_it_is_never_slower_than_without() -> None:
    plain = PlainEngine(iteration_s=0.02, row_s=1e-3, context_s=1e-7)
    for acceptance in (0.1, 0.5, 0.9):
        drafted = DraftedEngine(plain, Drafting(5, acceptance))
        for rows in (1, 16, 200):
            assert drafted.decode_s(rows, 5e4) <= plain.decode_s(rows, 5e4) * (1 + 1e-12)


def test_iterations_within_a_time_are_those_a_stretch_takes() -> None:
    engine = DraftedEngine(PlainEngine(0.01, 1e-4, 1e-7), Drafting(4, 0.6))
    for count in (1, 7, 300):
        seconds = engine.stretch_s(12, 9000.0, count)
        assert engine.iterations_in(12, 9000.0, seconds) == count
        assert engine.iterations_in(12, 9000.0, 0.999 * seconds) < count
