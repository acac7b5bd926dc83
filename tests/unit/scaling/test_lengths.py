import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import lengths
from scaling.length_score import score
from scaling.lengths import KEEP_RATIOS, LengthState, forecast, predict, update


def test_nothing_known_is_anything_up_to_the_limit() -> None:
    assert predict(LengthState(), "p", 100) == 50
    f = forecast(LengthState(), "p", 10, 100)
    assert f.mean == pytest.approx(50)
    assert f.quantile(0.9) == pytest.approx(90, abs=3)
    assert f.remaining(50) == pytest.approx(25, abs=6)


def test_a_prompt_moves_towards_what_it_does() -> None:
    state = update(LengthState(), {"p": [10, 30]}, 100)
    assert predict(state, "p", 100) == 20
    state = update(state, {"p": [40, 40]}, 100)
    assert predict(state, "p", 100) == 30


def test_an_unseen_prompt_is_taken_for_average() -> None:
    state = update(LengthState(), {"a": [10], "b": [30]}, 100)
    assert predict(state, "c", 100) == 20


def test_an_unseen_prompt_of_a_known_size_leans_to_prompts_of_its_size() -> None:
    short = {f"s{i}": [10] for i in range(50)}
    long = {f"l{i}": [90] for i in range(50)}
    sizes = dict.fromkeys(short, 8) | dict.fromkeys(long, 100)
    state = update(LengthState(), short | long, 100, sizes)
    assert predict(state, "new", 100, 9) < 20
    assert predict(state, "new", 100, 120) > 80


def test_prediction_never_exceeds_the_limit() -> None:
    state = update(LengthState(), {"p": [90]}, 100)
    assert predict(state, "p", 50) == 50
    assert forecast(state, "p", 10, 50).quantile(1) <= 50


def test_an_empty_step_teaches_nothing() -> None:
    state = update(LengthState(), {"p": [10]}, 100)
    assert update(state, {}, 100) is state
    assert update(state, {"p": []}, 100) is state


def test_prompts_not_seen_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "KEEP_PROMPTS", 2)
    state = update(LengthState(), {"a": [1], "b": [2]}, 100)
    state = update(state, {"a": [1]}, 100)
    state = update(state, {"c": [3]}, 100)
    assert list(state.means) == ["a", "c"]


def test_state_survives_storage() -> None:
    state = update(LengthState(), {"p": [10, 20], "q": [30, 50]}, 100, {"p": 7, "q": 9})
    state = update(state, {"p": [10, 20], "q": [30, 50]}, 100, {"p": 7, "q": 9})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=LengthState) == state


@given(st.dictionaries(st.text(max_size=3), st.lists(st.integers(1, 64), min_size=1), max_size=20))
def test_state_stays_bounded_and_sane(observed: dict[str, list[int]]) -> None:
    state = LengthState()
    for _ in range(3):
        state = update(state, observed, 64)
    assert len(state.ratios) <= KEEP_RATIOS
    assert len(state.cold_ratios) <= KEEP_RATIOS
    for prompt, seen in observed.items():
        assert min(seen) <= predict(state, prompt, 64) <= max(seen)
        f = forecast(state, prompt, 5, 64)
        assert all(1 <= length <= 64 for length in f.support)
    if observed:
        assert state.overall == pytest.approx(
            sum(map(sum, observed.values())) / sum(map(len, observed.values()))
        )


def test_quantiles_cover_what_they_should_once_prompts_repeat() -> None:
    # 64 prompts of their own typical length (log deviation 0.7), responses about it (0.5).
    rng = random.Random(0)
    typical = {f"p{i}": 100 * rng.lognormvariate(0, 0.7) for i in range(64)}

    def step() -> dict[str, list[int]]:
        return {
            key: [max(1, min(4000, round(mean * rng.lognormvariate(0, 0.5)))) for _ in range(8)]
            for key, mean in typical.items()
        }

    state = LengthState()
    for _ in range(3):
        state = update(state, step(), 4000)
    metrics = score({key: forecast(state, key, 10, 4000) for key in typical}, step())
    assert metrics["lengths/rank_correlation"] > 0.7
    assert metrics["lengths/coverage_p50"] == pytest.approx(0.5, abs=0.08)
    assert metrics["lengths/coverage_p90"] == pytest.approx(0.9, abs=0.05)
    assert metrics["lengths/mean_error"] < 0.5


def test_siblings_tell_new_prompts_apart() -> None:
    # Once half of each group has ended, groups of unknown prompts can be ranked.
    rng = random.Random(1)

    def group(mean: float) -> list[int]:
        return [max(1, min(4000, round(mean * rng.lognormvariate(0, 0.5)))) for _ in range(8)]

    def step(name: str) -> dict[str, list[int]]:
        return {f"{name}{i}": group(100 * rng.lognormvariate(0, 0.7)) for i in range(64)}

    state = update(update(LengthState(), step("a"), 4000), step("b"), 4000)
    actual = step("c")
    blind = {key: forecast(state, key, 10, 4000) for key in actual}
    told = {
        key: f.with_siblings(sorted(actual[key])[:4], [sorted(actual[key])[3]] * 4)
        for key, f in blind.items()
    }
    last = {key: sorted(seen)[4:] for key, seen in actual.items()}
    assert "lengths/rank_correlation" not in score(blind, last)  # all alike
    assert score(told, last)["lengths/rank_correlation"] > 0.7
