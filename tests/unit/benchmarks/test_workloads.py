"""Recorded workloads have the tail they are to have, and are the same every time."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from benchmarks.paced.model import FIRST_WORD, VOCABULARY, Workload
from benchmarks.paced.workloads import Recipe, quantile_means, record
from controller.tokenizer import PromptTokenizer
from rlhfless.spec import ModelSpec

RECIPE = Recipe("test", prompts=32, group=8, own_tokens=(24, 40), system_tokens=64)


def test_a_step_has_a_long_tail(tmp_path: Path) -> None:
    workload = Workload.read(str(record(RECIPE, tmp_path).model))
    rng = random.Random(0)
    lengths = sorted(
        workload.length(prompt, version=3, first=rng.randrange(FIRST_WORD, VOCABULARY))
        for prompt in list(workload.means)[: RECIPE.prompts]
        for _ in range(RECIPE.group)
    )
    longest, p75 = lengths[-1], lengths[3 * len(lengths) // 4]
    assert longest <= RECIPE.longest
    assert 20 <= longest / statistics.median(lengths) <= 30
    assert 14 <= longest / p75 <= 25


def test_siblings_are_alike_and_prompts_keep_their_length(tmp_path: Path) -> None:
    workload = Workload.read(str(record(RECIPE, tmp_path).model))
    prompts = list(workload.means)
    firsts = range(FIRST_WORD, VOCABULARY)
    for prompt in prompts[:8]:
        means = [
            statistics.mean(workload.length(prompt, version, first) for first in firsts)
            for version in range(3)
        ]
        assert max(means) < 2 * min(means)
        assert workload.length(prompt, 0, 5) == workload.length(prompt, 0, 5)
    assert sum(quantile_means(RECIPE)) == pytest.approx(sum(workload.means.values()) / RECIPE.steps)


def test_prompts_become_the_tokens_they_were_recorded_as(tmp_path: Path) -> None:
    recorded = record(RECIPE, tmp_path)
    tokenizer = PromptTokenizer.load(ModelSpec(path=str(recorded.model)))
    lines = recorded.data.read_text().splitlines()
    assert len(lines) == RECIPE.steps * RECIPE.prompts
    words = lines[0].split('"')[3]
    tokens = [int(word[1:]) for word in words.split()]
    assert tokenizer.tokens_of(words) == tokens
    assert 64 + 24 <= len(tokens) <= 64 + 40
    assert tokenizer.context == 64 + 40 + RECIPE.longest
    assert tokenizer.stop_token_ids([]) == [0]


def test_a_workload_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = record(RECIPE, tmp_path / "a"), record(RECIPE, tmp_path / "b")
    assert first.data.read_text() == second.data.read_text()
    assert Workload.read(str(first.model)) == Workload.read(str(second.model))
