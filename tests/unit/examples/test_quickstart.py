"""The quick start's task, data, rewards and warmed-up policy are what its page says they are."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.quickstart import make
from examples.quickstart.rewards import exact_match, items_right
from examples.quickstart.task import (
    MAX_ITEMS,
    MIN_ITEMS,
    answer_of,
    corrupted_answer,
    distinct_problems,
    draw_items,
    prompt_of,
)
from rlhfless.spec_file import load_spec

EXAMPLES = Path(make.__file__).parents[1]
FOLDER = EXAMPLES / "quickstart"


def rows_of(name: str) -> list[dict[str, str]]:
    lines = (FOLDER / "data" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_problem_and_its_answer() -> None:
    items = [("a", 1), ("b", 7), ("c", 0)]
    assert prompt_of(items) == "a1b7c0?"
    assert answer_of(items) == "a1=4;b7=0;c0=3"


def test_a_careless_teacher_errs_in_results_only() -> None:
    rng = random.Random(0)
    items = draw_items(rng)
    assert corrupted_answer(items, 0.0, rng) == answer_of(items)
    wrong, right = corrupted_answer(items, 1.0, rng), answer_of(items)
    for given, wanted in zip(wrong.split(";"), right.split(";"), strict=True):
        assert given[:3] == wanted[:3]
        assert given[3] != wanted[3]


def test_lengths_have_a_long_tail() -> None:
    rng = random.Random(0)
    counts = sorted(len(draw_items(rng)) for _ in range(4000))
    assert (counts[0], counts[-1]) == (MIN_ITEMS, MAX_ITEMS)
    assert 3.5 < sum(counts) / len(counts) < 4.2
    assert counts[len(counts) // 2] == 3


def test_problems_never_repeat_and_keep_off_those_to_avoid() -> None:
    avoid = {prompt_of(next(distinct_problems(random.Random(1), set())))}
    problems = distinct_problems(random.Random(1), avoid)
    prompts = [prompt_of(next(problems)) for _ in range(500)]
    assert len(set(prompts)) == 500
    assert not avoid & set(prompts)


def test_the_committed_data_are_what_the_recipe_writes(tmp_path: Path) -> None:
    train, held_out, _ = make.make_problems()
    for name, problems in (("train", train), ("eval", held_out)):
        make.write_rows(tmp_path / "rows.jsonl", problems)
        written = (FOLDER / "data" / f"{name}.jsonl").read_text()
        assert (tmp_path / "rows.jsonl").read_text() == written


def test_evaluation_prompts_are_never_trained_on() -> None:
    train, held_out = ({row["prompt"] for row in rows_of(name)} for name in ("train", "eval"))
    assert (len(train), len(held_out)) == (make.NUM_TRAIN, make.NUM_EVAL)
    assert not train & held_out


def test_the_job_uses_no_prompt_twice() -> None:
    training = load_spec(str(EXAMPLES / "quickstart.yaml")).training
    assert training.steps is not None
    assert training.steps * training.prompts_per_step <= make.NUM_TRAIN


def test_exact_match_wants_the_whole_answer() -> None:
    right = "a1=4;b7=0"
    completions = [right, right + " ", "a1=4", "a1=4;b7=1", right + ";", ""]
    rewards = exact_match(["a1b7?"] * 6, completions, [right] * 6, extra="ignored")
    assert rewards == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_items_right_gives_partial_credit() -> None:
    right = "a1=4;b7=0"
    completions = [right, "a1=4", "a1=4;b7=1", "a1=4;b7=0;c0=3;d0=3", "b7=0;a1=4", ""]
    rewards = items_right(["a1b7?"] * 6, completions, [right] * 6)
    assert rewards == [1.0, 0.5, 0.5, 0.5, 0.0, 0.0]


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_policy_knows_the_answers_but_is_unsure() -> None:
    """On 128 held-out prompts; bounds are the recipe's, widened by two standard errors or so."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from examples.quickstart.generate import accuracy, complete

    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "model")
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "model")
    assert model.num_parameters() < 450_000
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == model.config.vocab_size == 64
    assert tokenizer("a1b7?").input_ids == [tokenizer.vocab[c] for c in "a1b7?"]

    rows = rows_of("eval")[:128]
    prompts, answers = [r["prompt"] for r in rows], [r["answer"] for r in rows]
    greedy = accuracy(complete(model, tokenizer, prompts, temperature=0.0, seed=0), answers)
    sampled = accuracy(complete(model, tokenizer, prompts, temperature=1.0, seed=0), answers)
    assert greedy >= 0.93
    assert 0.20 <= sampled < 0.50
