"""Log-probs equal the naive computation, whatever the model, the passes and the chunks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from functions.hidden import enable_packing, predictors
from functions.lm_head import Head, backbone, lm_head
from functions.logprobs import TokenLogprobs, head_logprobs
from functions.packing import lay_out, plan
from functions.reference.inputs import check_sequences, sequences_of
from rlhfless.errors import UserError

torch.set_num_threads(1)
VOCABULARY = 61
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(name: str) -> Any:
    torch.manual_seed(0)
    match name:
        case "llama":
            model: Any = LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=False))
        case "llama-tied":
            model = LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**COMMON))
        case "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=VOCABULARY,
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    n_positions=64,
                    initializer_range=0.3,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                )
            )
        case "gemma2":
            model = Gemma2ForCausalLM(
                Gemma2Config(**COMMON, head_dim=8, final_logit_softcapping=2.0)
            )
        case "cohere":
            model = CohereForCausalLM(CohereConfig(**COMMON, logit_scale=0.25))
        case _:
            model = GraniteForCausalLM(GraniteConfig(**COMMON, logits_scaling=4.0))
    return model.eval()


def sequences(count: int = 7, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    own = [tokens(1, 9) for _ in range(count)]
    prompts = [own[i // 2] for i in range(count)]
    return prompts, [tokens(1, 14) for _ in range(count)]


def naive(
    model: Any, prompt: list[int], response: list[int], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence, full logits, no padding: log-probs and entropy of the response."""
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0].float() / temperature
    scores = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    chosen = scores[torch.arange(len(response)), torch.tensor(response)]
    return chosen, torch.distributions.Categorical(logits=scores).entropy()


def ours(
    model: Any,
    prompts: list[list[int]],
    responses: list[list[int]],
    max_tokens: int,
    *,
    packed: bool = False,
    temperature: float = 1.0,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All responses back to back, in the caller's order, by passes of at most ``max_tokens``."""
    sequences = sequences_of(prompts, responses)
    places: list[torch.Tensor] = []
    results: list[TokenLogprobs] = []
    for samples in plan(sequences, np.arange(len(prompts)), max_tokens, packed=packed):
        part = lay_out(sequences, samples, torch.device("cpu"), packed=packed)
        hidden = predictors(backbone(model), part)
        places.append(part.where)
        results.append(head_logprobs(lm_head(model), hidden, part.targets, temperature, **options))
    order = torch.cat(places).argsort()
    spread = [r.entropy for r in results if r.entropy is not None]
    chosen = torch.cat([r.logprobs for r in results])[order]
    return chosen, torch.cat(spread)[order] if spread else None


@pytest.mark.parametrize(
    "name", ["llama", "llama-tied", "qwen2", "gpt2", "gemma2", "cohere", "granite"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("packed", [False, True])
def test_equal_to_full_logits(name: str, temperature: float, packed: bool) -> None:
    model = make(name)
    prompts, responses = sequences()
    with torch.no_grad():
        expected = [
            naive(model, p, r, temperature) for p, r in zip(prompts, responses, strict=True)
        ]
        if packed:
            packed = enable_packing(model, model.config, torch.device("cpu"))
            assert packed == (name != "gemma2"), "all but those with soft-capped attention"
        chosen, entropy = ours(
            model,
            prompts,
            responses,
            48,
            packed=packed,
            temperature=temperature,
            with_entropy=True,
        )
    torch.testing.assert_close(chosen, torch.cat([c for c, _ in expected]), atol=2e-5, rtol=1e-5)
    assert entropy is not None
    torch.testing.assert_close(entropy, torch.cat([e for _, e in expected]), atol=2e-5, rtol=1e-5)
    assert chosen.dtype == torch.float32


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 30, 100_000])
@pytest.mark.parametrize("logit_bytes", [1, 4 * VOCABULARY * 3 * 5, 1 << 30])
def test_neither_passes_nor_chunks_change_values_or_gradients(
    max_tokens: int, logit_bytes: int, packed: bool
) -> None:
    model = make("llama-tied")
    prompts, responses = sequences()
    weights = torch.linspace(-1, 2, sum(map(len, responses)))

    def gradients(chosen: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        loss = (weights * chosen).sum() + (weights.flip(0) * entropy).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    pairs = [naive(model, p, r, 0.8) for p, r in zip(prompts, responses, strict=True)]
    expected = torch.cat([c for c, _ in pairs])
    if packed:
        assert enable_packing(model, model.config, torch.device("cpu"))
    chosen, entropy = ours(
        model,
        prompts,
        responses,
        max_tokens,
        packed=packed,
        temperature=0.8,
        with_entropy=True,
        logit_bytes=logit_bytes,
    )
    assert entropy is not None
    torch.testing.assert_close(chosen, expected, atol=2e-5, rtol=1e-5)
    for got, wanted in zip(
        gradients(chosen, entropy),
        gradients(expected, torch.cat([e for _, e in pairs])),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)


def test_order_of_samples_is_the_callers() -> None:
    model = make("llama")
    prompts, responses = sequences(6)
    order = [3, 0, 5, 1, 4, 2]
    with torch.no_grad():
        straight, _ = ours(model, prompts, responses, 40)
        shuffled, _ = ours(model, [prompts[i] for i in order], [responses[i] for i in order], 40)
    parts = torch.split(straight, [len(r) for r in responses])
    torch.testing.assert_close(shuffled, torch.cat([parts[i] for i in order]), atol=2e-5, rtol=1e-5)


def test_detached_entropy_is_the_same_number_without_a_gradient() -> None:
    model = make("llama")
    prompts, responses = sequences(2)
    _, full = ours(model, prompts, responses, 64, with_entropy=True)
    _, light = ours(model, prompts, responses, 64, with_entropy=True, entropy_gradient=False)
    assert full is not None
    assert light is not None
    assert full.requires_grad
    assert not light.requires_grad
    torch.testing.assert_close(light, full.detach())


def test_peft_wrapped_model_and_its_gradients() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"])
    model = get_peft_model(make("llama"), config)
    adapter = [p for p in model.parameters() if p.requires_grad]
    for parameter in adapter:
        torch.nn.init.normal_(parameter, std=0.2)
    prompts, responses = sequences(3)
    expected = torch.cat(
        [naive(model, p, r, 1.0)[0] for p, r in zip(prompts, responses, strict=True)]
    )
    chosen, _ = ours(model, prompts, responses, 64)
    torch.testing.assert_close(chosen, expected, atol=2e-5, rtol=1e-5)
    for got, wanted in zip(
        torch.autograd.grad(chosen.sum(), adapter),
        torch.autograd.grad(expected.sum(), adapter),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)


def test_gradient_checkpointing_in_training_mode() -> None:
    model = make("llama")
    prompts, responses = sequences(3)
    expected, _ = ours(model, prompts, responses, 64)
    wanted = torch.autograd.grad(expected.sum(), model.parameters())
    again = make("llama")
    again.activation_checkpointing_enable()
    again.train()
    chosen, _ = ours(again, prompts, responses, 64)
    torch.testing.assert_close(chosen, expected)
    for a, b in zip(torch.autograd.grad(chosen.sum(), again.parameters()), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_no_tokens_have_no_values() -> None:
    head = Head(torch.nn.Linear(8, 5))
    nothing = head_logprobs(
        head, torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64), 1.0, with_entropy=True
    )
    assert nothing.logprobs.shape == (0,)
    assert nothing.entropy is not None
    assert nothing.entropy.shape == (0,)


def test_logits_are_never_held_for_more_tokens_than_the_bound_allows() -> None:
    widths: list[int] = []

    class Watched(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            widths.append(len(hidden))
            return super().forward(hidden)

    head = Head(Watched(8, 50))
    hidden, targets = torch.randn(20, 8), torch.arange(20)
    with torch.no_grad():
        head_logprobs(head, hidden, targets, 1.0, logit_bytes=4 * 50 * 3 * 6)
    assert widths == [6, 6, 6, 2]


def test_logits_changed_in_unknown_ways_are_refused() -> None:
    class Doubled(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, **inputs: Any) -> Any:
            output = super().forward(**inputs)
            output.logits = output.logits * 2
            return output

    torch.manual_seed(0)
    model = Doubled(LlamaConfig(**COMMON)).eval()
    with pytest.raises(UserError, match="changes its logits"):
        lm_head(model)


def test_model_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match="no separate backbone"):
        backbone(make("llama").model)


@pytest.mark.parametrize(
    ("prompts", "responses", "message"),
    [
        ([[1]], [], "do not go with"),
        ([[]], [[1]], "is empty"),
        ([[1, 2, 3]], [[4, 5]], "context is 4"),
        ([[1]], [[64]], "vocabulary of 10"),
        ([[-1]], [[2]], "vocabulary of 10"),
    ],
)
def test_sequences_a_model_cannot_take(
    prompts: list[list[int]], responses: list[list[int]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_sequences(prompts, responses, vocabulary=10, context=4)
