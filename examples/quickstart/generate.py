"""Batched sampling in a few lines, for measuring the quick start's accuracy while it is made.

The real engine is ``functions/rollout``; this one exists so that the recipe needs nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

MAX_NEW_TOKENS = 64


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    temperature: float,
    seed: int,
    batch_size: int = 256,
) -> list[str]:
    """One completion a prompt, without special tokens; temperature 0 is greedy."""
    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    texts: list[str] = []
    for start in range(0, len(prompts), batch_size):
        inputs = tokenizer(
            list(prompts[start : start + batch_size]),
            return_tensors="pt",
            padding=True,
            return_token_type_ids=False,
        )
        sampling = {"temperature": temperature, "top_k": 0} if temperature > 0 else {}
        output = model.generate(
            **inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=temperature > 0, **sampling
        )
        responses = output[:, inputs["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(responses, skip_special_tokens=True)
    return texts


def accuracy(completions: Sequence[str], answers: Sequence[str]) -> float:
    return sum(c == a for c, a in zip(completions, answers, strict=True)) / len(answers)
