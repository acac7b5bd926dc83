from hypothesis import given
from hypothesis import strategies as st

from controller.timeline import Timeline


def test_overlapping_work_counts_once_and_waiting_not_at_all() -> None:
    timeline = Timeline()
    timeline.add("rollout", 0.0, 10.0, busy_s=9.0)  # works 1 .. 10
    timeline.add("reward", 8.0, 11.0, busy_s=2.0)  # works 9 .. 11
    timeline.add("training", 12.0, 15.0, busy_s=3.0)
    assert timeline.covered_s(0.0, 15.0) == 13.0
    assert timeline.covered_s(10.0, 13.0) == 2.0


def test_work_cannot_exceed_the_call() -> None:
    timeline = Timeline()
    timeline.add("rollout", 0.0, 1.0, busy_s=5.0)
    assert timeline.covered_s(-10.0, 10.0) == 1.0


def test_old_calls_are_forgotten() -> None:
    timeline = Timeline()
    timeline.add("rollout", 0.0, 1.0, busy_s=1.0)
    timeline.add("rollout", 0.0, 3.0, busy_s=3.0)
    timeline.forget_before(2.0)
    assert len(timeline.calls) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_cover_is_bounded_by_the_window_and_the_work(
    calls: list[tuple[float, float, float]],
) -> None:
    timeline = Timeline()
    for start, length, busy in calls:
        timeline.add("rollout", start, start + length, busy)
    covered = timeline.covered_s(0.0, 110.0)
    work = sum(c.busy_s for c in timeline.calls)
    assert -1e-9 <= covered <= min(110.0, work) + 1e-6
