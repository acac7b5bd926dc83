import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from controller.tokenizer import PromptTokenizer
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec, parse_spec
from simulator.scenario import Scenario
from simulator.scenario_file import ASSUMED_PROMPTS, make_scenario
from simulator.workload import LONG_TAILED_MATH, LengthModel
from simulator.workload_trace import Group, keys_of, write_trace

EXAMPLES = Path(__file__).parents[3] / "examples"
RAW: dict[str, Any] = {
    "model": {"path": "Qwen2.5-7B", "dtype": "bfloat16"},
    "dataset": {"path": "/nowhere/gsm8k.jsonl"},
    "rewards": [{"python": "a:b"}],
    "rollout": {"max_tokens": 2048},
}


def job(**sections: Any) -> JobSpec:
    return parse_spec({**RAW, **sections})


def scenario(tmp_path: Path, workload: dict[str, Any], **sections: Any) -> Scenario:
    path = tmp_path / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return make_scenario(job(**sections), workload_path=str(path))


def problem(tmp_path: Path, workload: dict[str, Any], **sections: Any) -> tuple[str, str | None]:
    with pytest.raises(UserError) as raised:
        scenario(tmp_path, workload, **sections)
    return raised.value.detail, raised.value.param


def lengths(found: Scenario) -> list[int]:
    return [len(prompt.tokens) for prompt in found.prompts]


def in_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    different = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(different, min(len(a), len(b)))


def test_without_a_dataset_everything_is_assumed_and_said() -> None:
    found = make_scenario(job(evaluation={"dataset": {"path": "/nowhere/eval.jsonl"}}))
    assert len(found.prompts) == ASSUMED_PROMPTS
    assert np.median(lengths(found)) == pytest.approx(200, rel=0.05)
    assert len(found.evaluation) == 256
    assert found.workload == LengthModel(median=512, cap=2048)
    assert found.shape.dtype == "bfloat16"
    said = "\n".join(found.assumptions)
    assert "there is no dataset /nowhere/gsm8k.jsonl here: it has 7,473 prompts" in said
    assert "prompts are 200 tokens long" in said
    assert "there is no evaluation dataset /nowhere/eval.jsonl" in said
    assert "a median of 512 tokens, a quarter of rollout.max_tokens" in said
    assert make_scenario(job()) == make_scenario(job())


def test_what_a_workload_says_is_not_assumed(tmp_path: Path) -> None:
    found = scenario(
        tmp_path,
        {
            "prompts": 100,
            "prompt_tokens": {"min": 50, "max": 80},
            "shared_prefix_tokens": 32,
            "lengths": {"median": 300, "between": 0.2, "within": 0.1, "growth": 0.01},
        },
        seed=3,
    )
    assert found.assumptions == ()
    assert len(found.prompts) == 100
    assert (min(lengths(found)), max(lengths(found))) == (50, 80)
    expected = LengthModel(median=300, cap=2048, between=0.2, within=0.1, growth=0.01, seed=3)
    assert found.workload == expected
    prompts = [prompt.tokens for prompt in found.prompts]
    assert {in_common(prompts[0], other) for other in prompts[1:]} == {32}
    assert max(max(tokens) for tokens in prompts) < found.shape.vocabulary
    assert len({prompt.key for prompt in found.prompts}) == 100


def test_plain_numbers_and_presets_do(tmp_path: Path) -> None:
    found = scenario(tmp_path, {"prompt_tokens": 1024, "preset": "long_tailed_math"})
    assert set(lengths(found)) == {1024}
    assert found.workload == LONG_TAILED_MATH.capped(2048)
    over = {"preset": "long_tailed_math", "lengths": {"tail_share": 0.1}}
    assert scenario(tmp_path, over).workload == replace(LONG_TAILED_MATH, tail_share=0.1, cap=2048)


def test_a_dataset_that_is_there_is_read(tmp_path: Path) -> None:
    found = make_scenario(load_spec(str(EXAMPLES / "quickstart.yaml")))
    assert len(found.prompts) == 2048
    assert len(found.evaluation) == 256
    first = found.prompts[0]
    assert first.key == "dataset/0"
    assert first.row.columns["answer"]
    assert len(first.tokens) == len(first.row.prompt)  # a token a character
    assert len(found.assumptions) == 1  # lengths
    # Unless the workload makes prompts up.
    path = tmp_path / "workload.yaml"
    path.write_text("prompts: 10")
    made = make_scenario(load_spec(str(EXAMPLES / "quickstart.yaml")), workload_path=str(path))
    assert len(made.prompts) == 10
    assert "prompts are those of the workload file, not of the dataset" in made.assumptions


def test_tokens_are_those_of_a_run() -> None:
    spec = load_spec(str(EXAMPLES / "quickstart.yaml"))
    found = make_scenario(spec).prompts[:50]
    rows = [prompt.row for prompt in found]
    tokenizer = PromptTokenizer.load(spec.model)
    tokens = tokenizer.encode(rows, max_tokens=64, overlong="error", param="dataset")
    assert [prompt.tokens for prompt in found] == [tuple(each) for each in tokens.values()]


def test_tokens_of_text_follow_its_bytes_where_there_is_no_tokenizer(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "Here is what to do. " * 5 + text}]}
        for text in ("Add.", "Multiply the numbers.", "Subtrahiere — bitte!")
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    found = make_scenario(job(dataset={"path": str(data)}))
    one, two, _ = (prompt.tokens for prompt in found.prompts)
    assert 25 <= in_common(one, two) < len(one) < len(two)
    assert "a token stands for 4 bytes of a prompt" in found.assumptions[0]


def test_much_text_is_tokenized_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.prompts.TOKENIZED_BYTES", 1000)
    monkeypatch.setattr("simulator.prompts._SAMPLED_BYTES", 100)
    found = make_scenario(load_spec(str(EXAMPLES / "quickstart.yaml")))
    assert "a token stands for 1 bytes of a prompt" in found.assumptions[0]
    whole = [len(prompt.row.prompt) for prompt in found.prompts]
    assert lengths(found) == whole


def test_rows_that_do_not_fit_fare_as_in_a_run(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "short"}\n{"prompt": "%s"}' % ("long " * 2000))
    fields = {"model": {"path": "Llama-2-7B"}, "rollout": {"max_tokens": 2048}}

    def with_overlong(overlong: str) -> Scenario:
        return make_scenario(job(dataset={"path": str(data), "overlong": overlong}, **fields))

    with pytest.raises(UserError, match=r"data.jsonl line 2: a prompt of 2500 tokens"):
        with_overlong("error")
    assert lengths(with_overlong("drop")) == [2]
    assert lengths(with_overlong("truncate_left")) == [2, 2048]


def test_recorded_lengths_are_replayed_and_cut(tmp_path: Path) -> None:
    write_trace(str(tmp_path / "trace.jsonl"), [Group(0, "a", (10, 3000)), Group(1, "b", (20, 20))])
    found = scenario(tmp_path, {"trace": "trace.jsonl"})
    keys = keys_of(["a", "b"])
    assert found.workload.lengths(keys, 2, 0, 0).tolist() == [[10, 2048], [20, 20]]
    replayed = make_scenario(job(rollout={"max_tokens": 15}), replay=found.workload)
    assert replayed.workload.lengths(keys, 2, 0, 0).tolist() == [[10, 15], [15, 15]]
    path = str(tmp_path / "workload.yaml")
    with pytest.raises(UserError, match="both replayed and given"):
        make_scenario(job(), workload_path=path, replay=found.workload)


def test_mistakes_in_a_workload_file_name_the_field(tmp_path: Path) -> None:
    for workload, expected in (
        ({"lengths": {"media": 3}}, "workload.lengths.media: unknown field; did you mean median?"),
        ({"promts": 3}, "workload.promts: unknown field; did you mean prompts?"),
        ({"prompts": 0}, "workload.prompts: input should be greater than 0 (got 0)"),
        ({"lengths": {"median": -1}}, "workload.lengths.median: input should be greater"),
        ({"prompt_tokens": {"min": 9}}, "workload.prompt_tokens: give a median, or min and max"),
        ({"prompt_tokens": {"min": 9, "max": 3}}, "workload.prompt_tokens: max 3 is less than"),
        ({"preset": "maths"}, "workload.preset: input should be 'long_tailed_math'"),
        ({"preset": "long_tailed_math", "trace": "x"}, "workload: preset and trace both say"),
        ({"prompt_tokens": 5, "shared_prefix_tokens": 5}, "workload: shared_prefix_tokens: "),
        ({"trace": "missing.jsonl"}, "workload.trace: cannot read"),
    ):
        assert problem(tmp_path, workload)[0].startswith(expected)
    with pytest.raises(UserError, match="there is no workload file"):
        make_scenario(job(), workload_path=str(tmp_path / "none.yaml"))


def test_what_exceeds_the_context_is_answered_by_what_would_fit(tmp_path: Path) -> None:
    llama: dict[str, Any] = {"model": {"path": "Llama-2-7B"}}
    found = problem(tmp_path, {"prompt_tokens": 3000}, **llama)
    assert found[0].startswith(
        "workload.prompt_tokens.median: prompts of 3000 tokens and responses"
    )
    assert found[0].endswith("exceed the context of Llama-2-7B, 4096; at most 2048 would do")
    found = problem(tmp_path, {"prompt_tokens": {"min": 1, "max": 3000}}, **llama)
    assert found[1] == "workload.prompt_tokens.max"
    found = problem(tmp_path, {"shared_prefix_tokens": 3000}, **llama)
    assert found[1] == "workload.shared_prefix_tokens"
    found = problem(tmp_path, {"prompt_tokens": 1000, "lengths": {"cap": 4000}}, **llama)
    assert found == (
        "workload.lengths.cap: 4000 tokens after a prompt of 1000 exceed the model's context of "
        "4096; at most 3096 would do",
        "workload.lengths.cap",
    )
    found = problem(tmp_path, {}, rollout={"max_tokens": 4096}, **llama)
    assert found[1] == "rollout.max_tokens"
    write_trace(str(tmp_path / "trace.jsonl"), [Group(0, "a", (10, 5000))])
    found = problem(tmp_path, {"trace": "trace.jsonl", "prompt_tokens": 96}, **llama)
    assert found[1] == "workload.trace"
    assert found[0].endswith("exceeds the context of Llama-2-7B, 4096; at most 4000 would do")


def test_lengths_beyond_the_longest_response_are_refused(tmp_path: Path) -> None:
    short = {"max_tokens": 64}
    found = problem(tmp_path, {"lengths": {"median": 300}}, rollout=short)
    assert found[0].startswith("workload.lengths.median: half the responses would be longer")
    assert problem(tmp_path, {"preset": "long_tailed_math"}, rollout=short)[1] == "workload.preset"


def test_an_unknown_model_is_answered_by_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no model Qwen2.5-8B; did you mean Qwen2.5-\dB"):
        make_scenario(job(model={"path": "Qwen2.5-8B"}))


JOBS = sorted((EXAMPLES / "simulate").glob("*.yaml"))
WORKLOADS = sorted((EXAMPLES / "workloads").glob("*.yaml"))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_examples_say_all_that_is_needed(path: Path, workload: Path) -> None:
    spec = load_spec(str(path))
    found = make_scenario(spec, workload_path=str(workload))
    assert found.assumptions == ()
    assert spec.training.prompts_per_step * spec.algorithm.group_size == 512
    assert found.workload.lengths(keys_of(["a"]), 8, 0, 0).max() <= 2048


def test_drafting_is_what_the_workload_file_says(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("drafting: {acceptance: 0.6}\n")
    drafting = make_scenario(job(), workload_path=str(path)).drafting
    assert drafting is not None
    assert (drafting.tokens, drafting.acceptance) == (7, 0.6)
    assert make_scenario(job()).drafting is None
