from hypothesis import given
from hypothesis import strategies as st

from controller.timeline import KEEP_CALLS, Timeline


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


def test_a_call_under_way_is_more_than_work() -> None:
    timeline = Timeline()
    timeline.add("rollout", 1.0, 4.0, busy_s=1.0)
    timeline.add("reward", 3.0, 6.0, busy_s=1.0)
    assert timeline.called_s(0.0, 10.0) == 5.0
    assert timeline.covered_s(0.0, 10.0) == 2.0


def test_the_newest_calls_with_work_are_kept() -> None:
    timeline = Timeline()
    timeline.add("rollout", 0.0, 1.0, busy_s=0.0)  # a steer
    for number in range(KEEP_CALLS + 5):
        timeline.add("reward", 0.0, 3.0, busy_s=2.0, load_s=5.0, work=number)
    timeline.forget_before(100.0)
    assert not timeline.worked["rollout"]
    kept = timeline.worked["reward"]
    assert [call.work for call in kept][-1] == KEEP_CALLS + 4
    assert len(kept) == KEEP_CALLS
    assert kept[0].load_s == 2.0
