import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhfless.errors import UserError
from simulator.random_numbers import key_of
from simulator.workload import LONG_TAILED_MATH, LengthModel, Lengths
from simulator.workload_fit import fit_lengths
from simulator.workload_trace import Group, LengthTrace, keys_of, read_run, read_trace, write_trace

KEYS = np.arange(2000, dtype=np.uint64)
PLAIN = LengthModel(median=300, cap=100_000, between=0.5, within=0.4)


def logs(lengths: Lengths) -> np.ndarray:
    return np.log(lengths.astype(float))


def test_lengths_have_the_median_and_deviations_they_should() -> None:
    drawn = PLAIN.lengths(KEYS, 8, 0, 0)
    assert drawn.shape == (2000, 8)
    assert np.median(drawn) == pytest.approx(300, rel=0.03)
    assert logs(drawn).std(axis=1, ddof=1).mean() == pytest.approx(0.4, rel=0.05)
    assert logs(drawn).std() == pytest.approx(np.hypot(0.5, 0.4), rel=0.03)
    assert np.quantile(drawn, 0.75) == pytest.approx(300 * np.exp(0.674 * 0.64), rel=0.05)


def test_samples_of_a_prompt_are_alike() -> None:
    drawn = logs(PLAIN.lengths(KEYS, 2, 0, 0))
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.25 / 0.41, abs=0.04)


def test_prompts_keep_their_lengths_over_epochs_as_far_as_asked() -> None:
    for persistence in (0.0, 0.7, 1.0):
        model = replace(PLAIN, persistence=persistence, within=0.0)
        first, second, third = (logs(model.lengths(KEYS, 1, 0, e))[:, 0] for e in (0, 1, 2))
        assert np.corrcoef(first, second)[0, 1] == pytest.approx(persistence, abs=0.05)
        assert np.corrcoef(first, third)[0, 1] == pytest.approx(persistence**2, abs=0.05)
        assert second.std() == pytest.approx(first.std(), rel=0.05)


def test_samples_of_different_epochs_differ_even_of_a_constant_prompt() -> None:
    model = replace(PLAIN, persistence=1.0)
    assert (model.lengths(KEYS, 1, 0, 0) != model.lengths(KEYS, 1, 0, 1)).mean() > 0.9


def test_responses_grow_until_they_do_not() -> None:
    model = replace(PLAIN, growth=0.02, growth_steps=50)
    at = {step: np.median(model.lengths(KEYS, 1, step, 0)) for step in (0, 25, 50, 90)}
    assert at[25] / at[0] == pytest.approx(np.exp(0.5), rel=0.03)
    assert at[50] == at[90]


def test_a_share_of_responses_runs_on_up_to_the_cap() -> None:
    model = replace(PLAIN, tail_share=0.1, tail_index=1.0, cap=5000)
    plain, tailed = PLAIN.lengths(KEYS, 8, 0, 0), model.lengths(KEYS, 8, 0, 0)
    longer = tailed > plain
    assert longer.mean() == pytest.approx(0.1, abs=0.01)
    doubled = (tailed[longer] > 2 * plain[longer]).mean()
    assert doubled == pytest.approx(0.5, abs=0.05), "P(factor > x) = 1 / x"
    assert tailed.max() == 5000
    assert tailed.min() >= 1
    assert model.capped(100).lengths(KEYS, 8, 0, 0).max() == 100
    assert model.capped(10**6).cap == 5000


def test_lengths_do_not_depend_on_who_asks_and_in_what_order() -> None:
    model = replace(LONG_TAILED_MATH, seed=3)
    together = model.lengths(KEYS, 8, 5, 2)
    alone = model.lengths(KEYS[[1234]], 8, 5, 2)
    np.testing.assert_array_equal(together[[1234]], alone)
    np.testing.assert_array_equal(together[:, :4], model.lengths(KEYS, 4, 5, 2))
    other = replace(model, seed=4).lengths(KEYS, 8, 5, 2)
    assert (together != other).mean() > 0.9


def test_long_tailed_math_is_as_rollpacker_reports() -> None:
    steps = [LONG_TAILED_MATH.lengths(KEYS[i : i + 128], 8, 0, 0) for i in range(0, 1280, 128)]
    upper = np.median([np.quantile(step, 0.75) for step in steps])
    ratio = np.median([step.max() / np.median(step) for step in steps])
    assert 755 <= upper <= 1100
    assert 25 <= ratio <= 32


@pytest.mark.parametrize(
    "field",
    [
        {"median": 0},
        {"cap": 0},
        {"between": -1},
        {"within": float("nan")},
        {"tail_share": 1},
        {"tail_index": 0},
        {"persistence": 1.1},
        {"growth_steps": -1},
    ],
)
def test_parameters_that_mean_nothing_are_refused(field: dict[str, float]) -> None:
    (name,) = field
    with pytest.raises(UserError, match=f"workload.lengths.{name} cannot be"):
        replace(PLAIN, **field)


def test_lengths_beyond_the_context_are_refused_with_what_would_do() -> None:
    model = LengthModel(median=300, cap=4096)
    assert model.within_context(1024, 8192) is model
    assert model.within_context(10**6, 0) is model, "no context is known"
    with pytest.raises(UserError, match="at most 3072 would do"):
        model.within_context(1024, 4096)
    with pytest.raises(UserError, match="the prompt alone fills it"):
        model.within_context(5000, 4096)


def record(model: LengthModel, steps: int = 20, per_step: int = 32, epochs: int = 2) -> list[Group]:
    groups = []
    for step in range(steps * epochs):
        first = step % steps * per_step
        names = [f"prompt {i}" for i in range(first, first + per_step)]
        drawn = model.lengths(keys_of(names), 8, step, step // steps)
        rows = zip(names, drawn.tolist(), strict=True)
        groups += [Group(step, name, tuple(row)) for name, row in rows]
    return groups


def all_lengths(groups: list[Group]) -> np.ndarray:
    return np.concatenate([group.lengths for group in groups])


@pytest.mark.parametrize(
    "model",
    [
        LONG_TAILED_MATH,
        LengthModel(560, 8192, 0.5, 0.5, 0.03, 0.9),
        LengthModel(300, 2048, 0.3, 0.5, persistence=0.8, growth=0.01, growth_steps=40),
        LengthModel(200, 4096, 0.6, 0.3, 0.05, 1.2, persistence=0.5),
        LengthModel(50, 64, 0.2, 0.2),
    ],
)
def test_a_model_fitted_to_recorded_lengths_draws_the_like(model: LengthModel) -> None:
    recorded = record(model)
    # The same random numbers again, so that only what the fit got wrong shows.
    drawn = all_lengths(record(fit_lengths(recorded, model.cap, seed=model.seed)))
    for q in (0.25, 0.5, 0.75, 0.9, 0.95):
        assert np.quantile(drawn, q) == pytest.approx(
            np.quantile(all_lengths(recorded), q), rel=0.1
        )
    assert np.quantile(drawn, 0.99) == pytest.approx(
        np.quantile(all_lengths(recorded), 0.99), rel=0.2
    )
    assert drawn.mean() == pytest.approx(all_lengths(recorded).mean(), rel=0.06)


def test_a_fit_recovers_what_the_parameters_mean() -> None:
    fitted = fit_lengths(record(replace(PLAIN, persistence=0.8, growth=0.02, growth_steps=100)))
    assert fitted.within == pytest.approx(0.4, rel=0.1)
    assert fitted.between == pytest.approx(0.5, rel=0.1)
    assert fitted.growth == pytest.approx(0.02, rel=0.15)
    assert fitted.persistence == pytest.approx(0.8, abs=0.15)
    assert fitted.tail_share == 0
    assert fitted.growth_steps == 39
    assert fit_lengths(record(PLAIN)).growth == pytest.approx(0, abs=0.002)


def test_little_data_still_gives_a_model() -> None:
    one = fit_lengths([Group(0, "a", (7,))])
    assert (one.median, one.cap, one.within, one.between) == (pytest.approx(7), 7, 0, 0)
    assert one.lengths(KEYS[:3], 2, 0, 0).tolist() == [[7, 7]] * 3
    alike = fit_lengths([Group(step, "a", (5, 5)) for step in range(6)])
    assert (alike.growth, alike.persistence) == (0, 0.9)
    with pytest.raises(UserError, match="no recorded lengths"):
        fit_lengths([])


def test_a_trace_is_replayed_and_what_is_missing_drawn(tmp_path: Path) -> None:
    groups = [Group(0, "a", (5, 6)), Group(3, "a", (7, 8)), Group(3, "ü", (9, 10, 11, 12))]
    path = str(tmp_path / "trace.jsonl")
    write_trace(path, groups)
    assert read_trace(path) == groups
    trace = LengthTrace(reversed(groups), PLAIN)
    keys = keys_of(["a", "ü", "new"])
    first = trace.lengths(keys, 3, 0, 0)
    drawn = PLAIN.lengths(keys, 3, 0, 0)
    assert first[0].tolist() == [5, 6, drawn[0, 2]]
    assert first[1].tolist() == [9, 10, 11]
    assert first[2].tolist() == drawn[2].tolist()
    assert trace.lengths(keys, 2, 3, 1)[0].tolist() == [7, 8]
    assert trace.lengths(keys, 2, 9, 5)[0].tolist() == [7, 8], "the last epoch is repeated"


def test_a_runs_samples_are_read_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for step, tokens in ((1, (4, 5)), (2, (6, 7))):
        rows = [
            {"id": "x", "prompt": "p", "num_tokens": n, "finish_reason": "stop"} for n in tokens
        ]
        chat = {"prompt": [{"role": "user", "content": "p"}], "num_tokens": 3}
        text = "".join(json.dumps(row) + "\n" for row in [*rows, chat])
        (tmp_path / "samples" / f"step-{step:06d}.jsonl").write_text(text)
    groups = read_run(str(tmp_path))
    assert [(g.step, g.lengths) for g in groups] == [(0, (4, 5)), (0, (3,)), (1, (6, 7)), (1, (3,))]
    assert groups[0].prompt == "p"
    assert key_of(groups[1].prompt) == key_of(groups[3].prompt) != key_of("p")


def test_files_that_are_no_recordings_are_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run with recorded samples"):
        read_run(str(tmp_path))
    samples = tmp_path / "samples"
    samples.mkdir()
    with pytest.raises(UserError, match="holds no samples"):
        read_run(str(tmp_path))
    (samples / "step-000001.jsonl").write_text('{"prompt": "p", "num_tokens": 0}\n')
    with pytest.raises(UserError, match="line 1: 0 is no number of tokens"):
        read_run(str(tmp_path))
    path = tmp_path / "trace.jsonl"
    for text, expected in (
        ("", "holds no groups"),
        ("[]\n", "line 1: not a mapping"),
        ("{", "not JSON lines"),
        ('{"step": 0, "prompt": "p"}\n', "line 1: needs lengths"),
        ('{"step": "x", "prompt": "p", "lengths": [1]}\n', "line 1: needs a step"),
        ('{"step": 0, "prompt": "p", "lengths": [1.5]}\n', "1.5 is no number of tokens"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=expected):
            read_trace(str(path))
    with pytest.raises(UserError, match="cannot read"):
        read_trace(str(tmp_path / "missing.jsonl"))
