from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from functions.logprobs import token_logprobs
from functions.training.rows import Sequences, best_share, can_share_prompts, lay_out, plan
from tests.support.training import make_batch

CPU = torch.device("cpu")


@given(
    seed=st.integers(0, 20),
    budget=st.integers(8, 400),
    hidden=st.sampled_from([0, 16, 4096]),
    groups=st.integers(1, 4),
)
def test_a_plan_has_every_token_once_within_the_budget(
    seed: int, budget: int, hidden: int, groups: int
) -> None:
    sequences = Sequences.of(make_batch(seed, groups=groups))
    samples = np.arange(groups * 4)
    passes = plan(sequences, samples, budget, hidden_size=hidden)
    where = []
    for rows in passes:
        assert len(rows) == 1 or len(rows) * max(r.num_tokens for r in rows) <= budget
        microbatch, places = lay_out(sequences, rows, CPU)
        assert microbatch.num_tokens == len(rows) * max(r.num_tokens for r in rows)
        expected = np.concatenate([sequences.responses[i] for i in microbatch.samples])
        assert microbatch.targets.tolist() == expected.tolist()
        where += places.tolist()
    assert sorted(where) == list(range(sum(map(len, sequences.responses))))


def test_sharing_pays_for_long_prompts_and_not_for_long_responses() -> None:
    assert best_share(11, 27, 8, 128) == 3
    assert best_share(512, 32, 8, 576) == 8
    assert best_share(8, 8192, 8, 128) == 1
    assert best_share(512, 32, 8, 0) == 1


def test_shared_rows_compute_what_rows_of_one_do(tiny_model_dir: Path) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    batch = make_batch(3)
    sequences = Sequences.of(batch)
    results = []
    for hidden in (0, 4096):
        logprobs = torch.zeros(len(batch.response_tokens))
        for rows in plan(sequences, np.arange(16), 64, hidden_size=hidden):
            assert (hidden == 0) == all(len(row.samples) == 1 for row in rows)
            microbatch, where = lay_out(sequences, rows, CPU)
            with torch.no_grad():
                logprobs[where] = token_logprobs(model, microbatch).logprobs
        results.append(logprobs)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("shares", [True, False])
def test_a_model_that_ignores_positions_cannot_share(tiny_model_dir: Path, shares: bool) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    backbone = model.model

    def deaf(**inputs: object) -> object:
        return backbone(input_ids=inputs["input_ids"], use_cache=False)

    found = can_share_prompts(backbone if shares else deaf, model.config, CPU)
    assert found is shares


def test_sliding_windows_do_not_share(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    model.config.sliding_window = 8
    assert not can_share_prompts(model.model, model.config, CPU)
