"""Holds follow grants, and never exceed what there is."""

from hypothesis import given
from hypothesis import strategies as st

from controller.service.holds import FORGET_S, Hold, settle

LEAST = {"a": 2, "b": 2, "c": 2}


def test_a_job_that_waits_is_kept_what_it_was_granted() -> None:
    assert settle({}, {"a": 4}, LEAST, {}, 8, 100.0) == {"a": Hold(4)}


def test_a_job_that_can_not_have_its_least_is_kept_nothing() -> None:
    driven = {"b": Hold(7, 99.0)}
    assert settle(driven, {"a": 4}, LEAST, {}, 8, 100.0) == driven


def test_a_job_lets_go_of_what_it_does_not_use_when_another_wants_it() -> None:
    holds = {"a": Hold(8, 99.0)}
    settled = settle(holds, {"a": 4, "b": 4}, LEAST, {"a": 6}, 8, 100.0)
    assert settled == {"a": Hold(6, 100.0), "b": Hold(2)}
    settled = settle(settled, {"a": 4, "b": 4}, LEAST, {"a": 3}, 8, 101.0)
    assert settled == {"a": Hold(4, 101.0), "b": Hold(4)}


def test_nobody_lets_go_of_what_nobody_wants() -> None:
    holds = {"a": Hold(8, 99.0)}
    assert settle(holds, {"a": 4}, LEAST, {"a": 1}, 8, 100.0) == {"a": Hold(8, 100.0)}


def test_a_job_whose_turn_is_over_keeps_what_it_needs_to_end_its_step() -> None:
    holds = {"a": Hold(8, 99.0)}
    settled = settle(holds, {"b": 4}, LEAST, {"a": 0}, 8, 100.0)
    assert settled == {"a": Hold(2, 100.0), "b": Hold(4)}


def test_what_a_lost_replica_held_is_free_again() -> None:
    holds = {"a": Hold(8, 100.0)}
    assert settle(holds, {"b": 4}, LEAST, {}, 8, 100.0 + FORGET_S) == {"b": Hold(4)}
    assert settle(holds, {"b": 4}, LEAST, {}, 8, 99.0 + FORGET_S) == holds


NAMES = st.sampled_from("abc")


@given(
    turns=st.lists(
        st.tuples(
            st.dictionaries(NAMES, st.integers(2, 8)),
            st.dictionaries(NAMES, st.integers(0, 8)),
        ),
        max_size=8,
    )
)
def test_holds_never_exceed_what_there_is(
    turns: list[tuple[dict[str, int], dict[str, int]]],
) -> None:
    holds: dict[str, Hold] = {}
    for second, (grants, uses) in enumerate(turns):
        # A driver starts a job that has its least, and never uses more than it holds.
        used = {
            job: min(use, holds[job].instances)
            for job, use in uses.items()
            if job in holds and holds[job].instances >= 2
        }
        holds = settle(holds, grants, LEAST, used, 8, float(second))
        assert sum(hold.instances for hold in holds.values()) <= 8
        assert all(holds[job].instances >= use for job, use in used.items())
