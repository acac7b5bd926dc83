from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.report.timeline import BINS, Timeline, timeline
from simulator.result import InstanceSpan
from tests.support.simulations import simulation, spans


def of(made: list[InstanceSpan] | tuple[InstanceSpan, ...], seconds: float = 160.0) -> Timeline:
    found = timeline(simulation(spans=tuple(made), window_s=(0.0, seconds)))
    assert found is not None
    return found


def span(name: str, start_s: float, end_s: float, phase: str = "busy") -> InstanceSpan:
    return replace(
        spans()[0], instance=name, start_s=start_s, end_s=end_s, phase=phase  # type: ignore[arg-type]
    )  # fmt: skip


def test_lanes_are_grouped_by_function() -> None:
    found = of(spans())
    assert [(lane.function, lane.number) for lane in found.lanes] == [
        ("rollout", 0), ("rollout", 1), ("rollout", 2), ("rollout", 3),
        ("reward", 0), ("training", 0),
    ]  # fmt: skip
    assert found.spot


def test_an_instance_takes_over_the_lane_of_one_that_is_gone() -> None:
    found = of(spans())
    assert [bar.instance for bar in found.lanes[0].bars] == ["rollout-1"] * 3 + ["rollout-5"] * 3


def test_stretches_of_the_same_phase_are_one_bar() -> None:
    made = [
        span("a", 0.0, 1.0),
        span("a", 1.0, 2.0),
        span("a", 3.0, 4.0),
        span("a", 4.0, 5.0, "idle"),
    ]
    bars = [(bar.start_s, bar.end_s) for bar in of(made).lanes[0].bars]
    assert bars == [(0.0, 2.0), (3.0, 4.0), (4.0, 5.0)]


def test_spans_are_cut_at_the_window() -> None:
    found = timeline(simulation(spans=spans(), window_s=(80.0, 100.0)))
    assert found is not None
    assert found.seconds == 20.0
    starts = [bar.start_s for lane in found.lanes for bar in lane.bars]
    ends = [bar.end_s for lane in found.lanes for bar in lane.bars]
    assert min(starts) == 0.0
    assert max(ends) == 20.0


def test_nothing_held_is_no_timeline() -> None:
    assert timeline(simulation(spans=())) is None
    assert timeline(simulation(window_s=(900.0, 901.0))) is None


def test_many_instances_become_areas() -> None:
    found = of(spans(actors=300))
    assert found.lanes == ()
    assert [area.function for area in found.areas] == ["rollout", "reward", "training"]
    rollout = found.areas[0]
    assert rollout.peak == pytest.approx(300)
    assert found.areas[2].peak == pytest.approx(8)  # accelerators, not instances
    held_s = sum(float(sum(each)) for each in rollout.by_phase.values()) * 160 / BINS
    assert held_s == pytest.approx(2 * 300 * 58)


@given(st.lists(st.tuples(st.floats(0, 90), st.floats(0.01, 60)), min_size=80, max_size=120))
def test_areas_hold_as_much_as_the_instances_did(lives: list[tuple[float, float]]) -> None:
    made = [span(f"i-{n}", at, at + long) for n, (at, long) in enumerate(lives)]
    found = timeline(simulation(spans=tuple(made), window_s=(0.0, 100.0)))
    assert found is not None
    held_s = sum(min(100.0, at + long) - at for at, long in lives)
    if found.areas:
        drawn = sum(float(sum(each)) for each in found.areas[0].by_phase.values()) * 100 / BINS
    else:
        drawn = sum(bar.end_s - bar.start_s for lane in found.lanes for bar in lane.bars)
    assert drawn == pytest.approx(held_s)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=40))
def test_no_two_instances_of_a_lane_overlap(lives: list[tuple[int, int]]) -> None:
    made = [span(f"i-{n}", at, at + long) for n, (at, long) in enumerate(lives)]
    found = of(made, 100.0)
    for lane in found.lanes:
        ends = [bar.end_s for bar in lane.bars]
        assert all(bar.start_s >= end for bar, end in zip(lane.bars[1:], ends, strict=False))
    most = max(sum(at <= t < at + long for at, long in lives) for t in range(100))
    assert len(found.lanes) == most
