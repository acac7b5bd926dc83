import pytest

from controller.service.states import FINAL, MEANING, STATES, may_follow


def test_every_state_has_one_sentence() -> None:
    assert set(MEANING) == set(STATES)
    for meaning in MEANING.values():
        assert meaning.endswith(".")
        assert meaning.count(".") == 1


@pytest.mark.parametrize("state", sorted(FINAL))
def test_nothing_follows_an_end(state: str) -> None:
    assert not [new for new in STATES if may_follow(state, new)]


@pytest.mark.parametrize("state", [s for s in STATES if s not in FINAL])
def test_a_job_can_end_from_wherever_it_is(state: str) -> None:
    assert may_follow(state, "cancelled")
    assert may_follow(state, "failed")


@pytest.mark.parametrize("state", STATES)
def test_a_state_does_not_follow_itself(state: str) -> None:
    assert not may_follow(state, state)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("queued", "succeeded"),
        ("queued", "pausing"),
        ("pausing", "queued"),
        ("paused", "running"),
        ("paused", "succeeded"),
        ("paused", "pausing"),
    ],
)
def test_steps_cannot_be_skipped(old: str, new: str) -> None:
    assert not may_follow(old, new)


def test_every_state_can_be_reached() -> None:
    reached = {"queued"}
    while more := {n for o in reached for n in STATES if may_follow(o, n)} - reached:
        reached |= more
    assert reached == set(STATES)
