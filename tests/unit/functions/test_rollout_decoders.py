"""Both decoders against the model's own forward, through a life of rows that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from functions.rollout.decoder import Decoder, NewRow, compaction
from functions.rollout.hf_decoder import HfDecoder
from functions.rollout.llama_decoder import LlamaDecoder
from functions.rollout.llama_weights import LlamaWeights, supports
from functions.rollout.prefixes import Prefixes
from prefix_cache.entry import Layout
from prefix_cache.keys import KvIdentity
from prefix_cache.store import KvStore
from rlhfless.objects import ObjectStore
from tests.support.rollout import VOCABULARY, make_prompts

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(**changes: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


LEAN: dict[str, Callable[[], Any]] = {
    "llama-gqa": llama,
    "llama-mha-tied": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama-rope3": lambda: llama(rope_parameters=LLAMA3_ROPE),
    "llama-wide-head": lambda: llama(vocab_size=5000),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
OTHER: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=48,
            n_layer=2,
            n_head=4,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)),
}


def make_model(name: str) -> Any:
    torch.manual_seed(0)
    model = {**LEAN, **OTHER}[name]().eval().requires_grad_(False)
    for parameter in model.parameters():  # biases and norms start out trivial: make them count
        if parameter.dim() == 1:
            parameter += 0.1 * torch.randn_like(parameter)
    return model


CUTS = ([4], [16, 32, 39], [16])
"""Of ``Life``'s prompts; for decoders that keep prefixes."""


class Life:
    """Drives a decoder and holds its logits equal to a full forward of every row's sequence."""

    def __init__(self, model: Any, decoder: Decoder) -> None:
        self.model = model
        self.decoder = decoder
        self.prompts = make_prompts([5, 40, 17])
        self.rows: list[list[int]] = []
        self._rng = torch.Generator().manual_seed(3)

    def admit(self, *rows: tuple[int, int]) -> None:
        """Rows as (prompt, number of tokens they have already)."""
        new = [
            NewRow(prompt, self.prompts[prompt], self._tokens(count), CUTS[prompt])
            for prompt, count in rows
        ]
        logits = self.decoder.admit(new)
        sequences = [[*row.prompt_tokens, *row.tokens] for row in new]
        self._check(logits, sequences)
        self.rows += sequences

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            tokens = self._tokens(len(self.rows))
            for row, token in zip(self.rows, tokens, strict=True):
                row.append(token)
            self._check(self.decoder.step(torch.tensor(tokens)), self.rows)

    def drop(self, *rows: int) -> None:
        for source, target in compaction(len(self.rows), rows):
            self.rows[target] = self.rows[source]
        del self.rows[len(self.rows) - len(rows) :]
        self.decoder.drop(rows)
        assert self.decoder.num_rows == len(self.rows)

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = torch.randint(VOCABULARY, (count,), generator=self._rng).tolist()
        return tokens

    def _check(self, logits: torch.Tensor, sequences: list[list[int]]) -> None:
        with torch.no_grad():
            want = torch.stack([self.model(torch.tensor([s])).logits[0, -1] for s in sequences])
        torch.testing.assert_close(logits, want, atol=2e-4, rtol=2e-4)


def decoders(model: Any, name: str) -> list[Decoder]:
    made: list[Decoder] = [HfDecoder(model, max_rows=3)]
    if name in LEAN:
        weights = LlamaWeights(model)
        made += [
            LlamaDecoder(weights, max_rows=3, num_prompts=2, shared=shared)
            for shared in (False, True)
        ]
        for _ in range(2):  # the second finds what the first has left
            made.append(
                LlamaDecoder(
                    weights, max_rows=3, num_prompts=2, shared=True, prefixes=prefixes_of(weights)
                )
            )
    return made


STORE = KvStore()


def prefixes_of(weights: LlamaWeights) -> Prefixes:
    identity = KvIdentity(path=str(id(weights)), job="job", version=0, dtype="float32")
    layout = Layout(len(weights.layers), weights.kv_heads, weights.head_dim, "float32")
    STORE.use(identity, layout)
    nowhere = ObjectStore("memory://")
    return Prefixes(STORE, identity, layout, nowhere, load=False, publish=False)


@pytest.mark.parametrize("name", [*LEAN, *OTHER])
def test_decoders_equal_the_models_forward(name: str) -> None:
    model = make_model(name)
    assert supports(model) == (name in LEAN)
    for decoder in decoders(model, name):
        life = Life(model, decoder)
        life.admit((0, 0), (0, 0), (1, 0))
        life.step(3)
        life.drop(0)
        life.step(2)
        life.admit((2, 4), (0, 0), (1, 3), (2, 0))  # more rows than it was made for
        life.step(2)
        decoder.forget(0)
        decoder.forget(1)
        life.drop(1, 2, 4)
        life.step(70)  # beyond the spare columns
        decoder.forget(2)
        life.drop(0)
        life.step(2)
        life.drop(*range(len(life.rows)))
        assert decoder.num_rows == 0
        life.admit((1, 0), (0, 2))  # empty, then used again
        life.step(3)


def test_a_known_prompt_is_not_run_again_and_is_freed_with_its_last_row() -> None:
    model = make_model("llama-gqa")
    for shared in (False, True):
        decoder = LlamaDecoder(LlamaWeights(model), max_rows=8, num_prompts=2, shared=shared)
        life = Life(model, decoder)
        life.admit((1, 0), (1, 0))
        life.admit((1, 0))
        assert decoder.prefill_tokens == 40
        assert decoder.kv_tokens == (40 if shared else 4 * 40)
        decoder.forget(1)
        assert decoder.kv_tokens == (40 if shared else 3 * 40)
        life.drop(0, 1, 2)
        assert decoder.kv_tokens == 0


def test_new_weights_are_served_however_they_got_into_the_module() -> None:
    model, other = make_model("qwen2"), make_model("qwen2")
    for parameter in other.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    weights = LlamaWeights(model)
    fused = [layer.qkv.data_ptr() for layer in weights.layers]
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    weights.refresh()
    assert [layer.qkv.data_ptr() for layer in weights.layers] == fused, "fused again for nothing"
    Life(other, LlamaDecoder(weights, max_rows=2, num_prompts=1, shared=False)).admit((0, 0))
    for mine in model.parameters():
        mine.data = mine.data.clone() * 0.5
    weights.refresh()
    life = Life(model, LlamaDecoder(weights, max_rows=2, num_prompts=1, shared=False))
    life.admit((0, 0), (1, 0))
    life.step()


def test_fusing_leaves_the_module_as_it_was() -> None:
    model, same = make_model("llama-biases"), make_model("llama-biases")
    same.load_state_dict(model.state_dict())
    LlamaWeights(model)
    for (name, mine), (_, theirs) in zip(
        model.state_dict().items(), same.state_dict().items(), strict=True
    ):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ],
)
def test_what_the_lean_path_does_not_compute_it_does_not_claim(changes: dict[str, Any]) -> None:
    assert not supports(llama(**changes))


@pytest.mark.parametrize(
    ("rows", "dropped", "moves"),
    [
        (4, [0], [(3, 0)]),
        (4, [3], []),
        (4, [0, 3], [(2, 0)]),
        (5, [1, 2, 4], [(3, 1)]),
        (3, [0, 1, 2], []),
    ],
)
def test_compaction(rows: int, dropped: list[int], moves: list[tuple[int, int]]) -> None:
    assert compaction(rows, dropped) == moves
