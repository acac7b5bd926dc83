"""The ledger against a second, plain way of counting the same life of instances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from controller.ledger import PHASES, Ledger, Phase, Usage
from rlhfless.messages import FUNCTION_NAMES, FunctionName


def test_a_life_is_booked_by_phase() -> None:
    ledger = Ledger({"rollout": 3.6})
    ledger.started("r1", "rollout", 10.0)
    ledger.phase("r1", "idle", 12.0)
    ledger.phase("r1", "busy", 15.0)
    ledger.phase("r1", "idle", 25.0)
    ledger.stopped("r1", 30.0)
    usage = ledger.usage(100.0)["rollout"]
    assert (usage.cold_s, usage.busy_s, usage.idle_s) == (2.0, 10.0, 8.0)
    assert usage.held_s == 20.0
    assert usage.idle_fraction == 0.4
    assert usage.usd is not None
    assert math.isclose(usage.usd, 0.02)  # 20 s of 3.6 USD an hour


def test_a_running_instance_is_counted_up_to_now() -> None:
    ledger = Ledger()
    ledger.started("r1", "rollout", 0.0)
    ledger.phase("r1", "busy", 1.0)
    assert ledger.usage(4.0)["rollout"].busy_s == 3.0
    assert ledger.usage(6.0)["rollout"].busy_s == 5.0
    assert ledger.spans[-1].phase == "cold"  # asking books nothing


def test_a_window_cuts_spans_at_both_ends() -> None:
    ledger = Ledger()
    ledger.started("r1", "rollout", 0.0)
    ledger.phase("r1", "busy", 2.0)
    ledger.stopped("r1", 10.0)
    usage = ledger.usage(7.0, since_s=1.0)["rollout"]
    assert (usage.cold_s, usage.busy_s) == (1.0, 5.0)
    assert ledger.usage(20.0, since_s=10.0) == {}


def test_entering_the_same_phase_again_makes_no_span() -> None:
    ledger = Ledger()
    ledger.started("r1", "reward", 0.0)
    ledger.phase("r1", "cold", 1.0)
    ledger.phase("r1", "idle", 2.0)
    ledger.phase("r1", "idle", 3.0)
    assert len(ledger.all_spans(4.0)) == 2


def test_what_is_unknown_is_not_booked() -> None:
    ledger = Ledger()
    ledger.phase("gone", "busy", 1.0)
    ledger.stopped("gone", 2.0)
    assert ledger.total(3.0) == Usage()


def test_an_unknown_price_makes_the_total_unknown() -> None:
    ledger = Ledger({"rollout": 1.0, "reward": None})
    ledger.started("r1", "rollout", 0.0)
    assert ledger.total(3600.0).usd == 1.0
    ledger.started("w1", "reward", 3600.0)
    assert ledger.total(7200.0).usd is None
    assert ledger.usage(7200.0)["rollout"].usd == 2.0


@dataclass(frozen=True)
class Life:
    """An instance's phases with their lengths in seconds; the last one is open if not ``ends``."""

    function: FunctionName
    start_s: int
    phases: list[tuple[Phase, int]]
    ends: bool


_lives = st.lists(
    st.builds(
        Life,
        function=st.sampled_from(FUNCTION_NAMES),
        start_s=st.integers(0, 50),
        phases=st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 20)), max_size=8),
        ends=st.booleans(),
    ),
    max_size=6,
)


def _book(lives: list[Life]) -> tuple[Ledger, list[tuple[FunctionName, Phase, int]]]:
    """The ledger of these lives, and for each whole second what was held in it."""
    ledger = Ledger()
    events: list[tuple[int, Callable[[], None]]] = []
    seconds: list[tuple[FunctionName, Phase, int]] = []
    for number, life in enumerate(lives):
        name, now = f"i{number}", life.start_s
        events.append((now, partial(ledger.started, name, life.function, now)))
        for phase, length in [("cold", 1), *life.phases]:
            events.append((now, partial(ledger.phase, name, phase, now)))
            seconds += [(life.function, phase, s) for s in range(now, now + length)]
            now += length
        if life.ends:
            events.append((now, partial(ledger.stopped, name, now)))
        else:
            last = (life.phases or [("cold", 1)])[-1][0]
            seconds += [(life.function, last, s) for s in range(now, 1000)]
    for _, happen in sorted(events, key=lambda event: event[0]):
        happen()
    return ledger, seconds


@given(_lives, st.integers(0, 300), st.integers(0, 300))
def test_every_second_is_booked_once(lives: list[Life], a: int, b: int) -> None:
    since, now = sorted((a, b))
    ledger, seconds = _book(lives)
    usage = ledger.usage(now, since)
    for function in FUNCTION_NAMES:
        booked = usage.get(function, Usage())
        for phase, value in (
            ("cold", booked.cold_s),
            ("busy", booked.busy_s),
            ("idle", booked.idle_s),
        ):
            held = [s for f, p, s in seconds if (f, p) == (function, phase) and since <= s < now]
            assert value == len(held)
        assert booked.held_s == booked.cold_s + booked.busy_s + booked.idle_s


@given(_lives, st.lists(st.integers(0, 300), min_size=2, max_size=5))
def test_windows_add_up(lives: list[Life], cuts: list[int]) -> None:
    ledger, _ = _book(lives)
    cuts = sorted(cuts)
    whole = ledger.total(cuts[-1], cuts[0]).held_s
    parts = [ledger.total(b, a).held_s for a, b in itertools.pairwise(cuts)]
    assert sum(parts) == whole


@given(_lives)
def test_spans_of_an_instance_lie_end_to_end(lives: list[Life]) -> None:
    ledger, _ = _book(lives)
    for number, life in enumerate(lives):
        spans = sorted(
            (s for s in ledger.all_spans(1000) if s.instance == f"i{number}"),
            key=lambda s: s.start_s,
        )
        assert spans[0].start_s == life.start_s
        assert all(x.end_s == y.start_s for x, y in itertools.pairwise(spans))
        assert all(s.end_s > s.start_s for s in spans)


def test_of_what_is_shared_a_part_is_booked() -> None:
    ledger = Ledger({"reward": 3600.0})
    ledger.started("a", "reward", 0.0, weight=0.5)
    ledger.phase("a", "busy", 2.0)
    ledger.weigh("a", 0.25, 4.0)
    ledger.weigh("a", 0.25, 6.0)
    usage = ledger.usage(8.0)["reward"]
    assert (usage.cold_s, usage.busy_s, usage.idle_s) == (1.0, 2 * 0.5 + 4 * 0.25, 0.0)
    assert usage.usd == usage.held_s
    assert [span.weight for span in ledger.all_spans(8.0)] == [0.5, 0.5, 0.25]
    ledger.stopped("a", 8.0)
    assert ledger.usage(8.0)["reward"] == usage
    assert ledger.usage(8.0, since_s=6.0)["reward"].held_s == 2 * 0.25
