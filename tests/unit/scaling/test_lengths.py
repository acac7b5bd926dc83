import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.lengths import KEEP_RATIOS, LengthState, predict, tail_factor, update


def test_nothing_known_is_half_the_limit() -> None:
    assert predict(LengthState(), "p", 100) == 50
    assert tail_factor(LengthState(), 8) == 2.0


def test_a_prompt_moves_towards_what_it_does() -> None:
    state = update(LengthState(), {"p": [10, 30]}, 100)
    assert predict(state, "p", 100) == 20
    state = update(state, {"p": [40, 40]}, 100)
    assert predict(state, "p", 100) == 30


def test_an_unseen_prompt_is_taken_for_average() -> None:
    state = update(LengthState(), {"a": [10], "b": [30]}, 100)
    assert predict(state, "c", 100) == 20


def test_prediction_never_exceeds_the_limit() -> None:
    assert predict(update(LengthState(), {"p": [90]}, 100), "p", 50) == 50


def test_tail_is_a_high_quantile_of_what_was_seen() -> None:
    state = LengthState(ratios=[0.5, 1.0, 1.5, 4.0])
    assert tail_factor(state, 1) == 1.0
    assert tail_factor(state, 1000) == 4.0


def test_an_empty_step_teaches_nothing() -> None:
    state = update(LengthState(), {"p": [10]}, 100)
    assert update(state, {}, 100) is state


@given(st.dictionaries(st.text(max_size=3), st.lists(st.integers(1, 64), min_size=1), max_size=20))
def test_state_stays_bounded_and_sane(lengths: dict[str, list[int]]) -> None:
    state = LengthState()
    for _ in range(3):
        state = update(state, lengths, 64)
    assert len(state.ratios) <= KEEP_RATIOS
    for prompt, observed in lengths.items():
        assert min(observed) <= predict(state, prompt, 64) <= max(observed)
    if lengths:
        assert state.overall == pytest.approx(
            sum(map(sum, lengths.values())) / sum(map(len, lengths.values()))
        )
