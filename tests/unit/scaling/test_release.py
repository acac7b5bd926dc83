import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.release import MIN_GAP_S, SAFETY, WORTH, Gap, decide, prewarm_at

seconds = st.floats(0, 1000)


def test_worked_example() -> None:
    hidden = decide(Gap(30, 8), 0.5, 60, 240)
    assert hidden.release
    assert hidden.prewarm_s == pytest.approx(20)
    assert hidden.keep_score == pytest.approx(0.0625)
    assert hidden.release_score == pytest.approx(0.5 * 10 / 240)
    shown = decide(Gap(30, 8, hidden=False), 0.5, 60, 240)
    assert not shown.release
    assert shown.prewarm_s is None
    assert shown.release_score == pytest.approx(0.5 * 8 / 240 + 0.5 * 8 / 60)


def test_what_is_never_needed_again_goes() -> None:
    assert decide(Gap(None, 100), 1.0, 60, 240).release


def test_time_alone_keeps_what_could_be_late() -> None:
    assert not decide(Gap(30, 40), 1.0, 60, 240).release
    assert not decide(Gap(300, 40, hidden=False), 1.0, 60, 240).release


def test_cost_alone_lets_go_what_idles_longer_than_a_start() -> None:
    assert decide(Gap(30, 8, hidden=False), 0.0, 60, 240).release
    assert not decide(Gap(7, 8, hidden=False), 0.0, 60, 240).release


@given(seconds, seconds, st.booleans(), st.floats(0, 1))
def test_the_cheaper_choice_is_made(gap_s: float, start_s: float, hidden: bool, w: float) -> None:
    choice = decide(Gap(gap_s, start_s, hidden), w, 60, 240)
    worth = gap_s > max(MIN_GAP_S, WORTH * start_s)
    assert choice.release == (choice.release_score < choice.keep_score and worth)


@given(seconds, seconds)
def test_starts_ahead_are_over_in_time_where_that_is_possible(gap_s: float, start_s: float) -> None:
    at_s = prewarm_at(gap_s, start_s)
    assert 0 <= at_s <= gap_s
    if gap_s >= SAFETY * start_s:
        assert at_s + start_s <= gap_s + 1e-9


def test_a_gap_of_hardly_more_than_a_start_lets_nothing_go() -> None:
    barely = decide(Gap(1.9, 1.0), time_weight=0.0, reference_s=10.0, reference_held_s=10.0)
    assert barely.release_score < barely.keep_score
    assert not barely.release
    assert decide(Gap(2.5, 1.0), time_weight=0.0, reference_s=10.0, reference_held_s=10.0).release


def test_a_moment_lets_nothing_go() -> None:
    assert not decide(Gap(1.0, 0.01), 0.0, reference_s=1.0, reference_held_s=1.0).release
