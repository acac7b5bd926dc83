from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from functions import packed_attention
from functions.hidden import enable_packing, predictors
from functions.packing import Sequences, lay_out, plan
from tests.support.training import make_batch

CPU = torch.device("cpu")


def load(folder: Path) -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def sizes(sequences: Sequences, samples: list[int], packed: bool) -> int:
    """Tokens of a pass, by the definition."""
    prompts = [len(sequences.prompts[i]) for i in samples]
    responses = [len(sequences.responses[i]) - 1 for i in samples]
    if not packed:
        return len(samples) * max(p + r for p, r in zip(prompts, responses, strict=True))
    by_group = {int(sequences.groups[i]): len(sequences.prompts[i]) for i in samples}
    return sum(by_group.values()) + sum(responses)


@given(
    seed=st.integers(0, 20),
    budget=st.integers(4, 400),
    packed=st.booleans(),
    groups=st.integers(1, 4),
)
def test_a_plan_has_every_token_once_within_the_budget(
    seed: int, budget: int, packed: bool, groups: int
) -> None:
    sequences = Sequences.of(make_batch(seed, groups=groups))
    where = []
    for samples in plan(sequences, np.arange(groups * 4), budget, packed=packed):
        part = lay_out(sequences, samples, CPU, packed=packed)
        assert part.input_ids.numel() == sizes(sequences, samples, packed)
        assert len(samples) == 1 or part.input_ids.numel() <= budget
        expected = np.concatenate([sequences.responses[i] for i in samples])
        assert part.targets.tolist() == expected.tolist()
        assert len(part.predict) == len(part.targets)
        where += part.where.tolist()
    assert sorted(where) == list(range(sum(map(len, sequences.responses))))


@pytest.mark.parametrize("small_scores", [0, packed_attention.SMALL_SCORES])
def test_packed_passes_compute_what_single_sequences_do(
    tiny_model_dir: Path, small_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden states and gradients, by both kernels; grouped key-value heads, ragged lengths."""
    monkeypatch.setattr(packed_attention, "SMALL_SCORES", small_scores)
    model = load(tiny_model_dir)
    batch = make_batch(3, longest=30)
    sequences = Sequences.of(batch)
    pull = torch.randn(len(batch.response_tokens), 64, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros_like(pull)
    for i in range(batch.num_samples):
        tokens = np.concatenate([sequences.prompts[i], sequences.responses[i]]).astype(np.int64)
        hidden = model.model(input_ids=torch.from_numpy(tokens)[None]).last_hidden_state[0]
        start, prompt = sequences.starts[i], len(sequences.prompts[i])
        mine = hidden[prompt - 1 : -1]
        expected[start : start + len(mine)] = mine.detach()
        (mine * pull[start : start + len(mine)]).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    assert enable_packing(model, model.config, CPU)
    found = torch.zeros_like(pull)
    passes = plan(sequences, np.arange(batch.num_samples), 90, packed=True)
    assert len(passes) > 2
    for samples in passes:
        part = lay_out(sequences, samples, CPU, packed=True)
        hidden = predictors(model.model, part)
        found[part.where] = hidden.detach()
        (hidden * pull[part.where]).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-3)


def test_a_packing_model_still_takes_plain_calls(tiny_model_dir: Path) -> None:
    plain, packing = load(tiny_model_dir), load(tiny_model_dir)
    assert enable_packing(packing, packing.config, CPU)
    tokens = torch.arange(4, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(packing(tokens).logits, plain(tokens).logits)


def test_a_model_that_does_not_honour_positions_keeps_its_attention(tiny_model_dir: Path) -> None:
    model = load(tiny_model_dir)
    real = model.model.forward

    def deaf(position_ids: object = None, **inputs: Any) -> Any:
        return real(**inputs)

    model.model.forward = deaf
    assert not enable_packing(model, model.config, CPU)
    assert model.config._attn_implementation == "sdpa"


def test_sliding_windows_are_not_packed(tiny_model_dir: Path) -> None:
    model = load(tiny_model_dir)
    model.config.sliding_window = 8
    assert not enable_packing(model, model.config, CPU)


def test_other_kinds_of_attention_are_refused() -> None:
    states = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="softcap"):
        packed_attention.attention(torch.nn.Module(), states, states, states, None, softcap=30.0)


def test_gpt2_with_learned_positions(tmp_path: Path) -> None:
    """Another architecture: whichever way it goes, it must not be wrong."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    model = GPT2LMHeadModel(config).eval()
    model.set_attn_implementation("sdpa")
    sequences = Sequences.of(make_batch(1))
    samples = list(range(8))
    apart = lay_out(sequences, samples, CPU, packed=False)
    with torch.no_grad():
        expected = predictors(model.base_model, apart)
        packed = enable_packing(model, model.config, CPU)
        part = lay_out(sequences, samples, CPU, packed=packed)
        torch.testing.assert_close(predictors(model.base_model, part), expected)
