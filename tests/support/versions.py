"""Weight versions of small models, as a trainer publishes them, and what they compute."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from functions.weights.lora import adapter_config, adapter_tensors
from functions.weights.tensors import publish
from rlhfless.messages import ModelRef
from rlhfless.objects import ObjectStore

TOKENS = torch.tensor([[1, 5, 9, 30, 2, 44], [3, 3, 8, 60, 21, 7]])


def untied_model() -> LlamaForCausalLM:
    """A small random Llama whose head is not its embedding."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
        pad_token_id=0,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def ref(folder: Path, version: int = 0, job: str = "j", dtype: str = "float32") -> ModelRef:
    return ModelRef(path=str(folder), job=job, version=version, dtype=dtype)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(input_ids=TOKENS).logits
    return result


@torch.no_grad()
def perturb(parameters: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def train_full(folder: Path, store: ObjectStore, parent: int, job: str = "j") -> torch.Tensor:
    """Publish a version that changes everything; returns its logits."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    perturb(model.parameters(), parent + 1)
    publish(store, job, parent, dict(model.named_parameters()), kind="full", call_id=f"{parent}")
    return logits(model)


def train_top(folder: Path, store: ObjectStore, parent: int) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder)
    top = {
        n: p for n, p in model.named_parameters() if "layers.1." in n or n.endswith("norm.weight")
    }
    perturb(top.values(), parent + 1)
    publish(store, "j", parent, top, kind="partial", call_id=f"{parent}")
    return logits(model)


def train_lora(
    folder: Path,
    store: ObjectStore,
    parent: int,
    targets: list[str],
    job: str = "j",
    **options: Any,
) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings=True")
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(folder),
            LoraConfig(r=4, lora_alpha=10, target_modules=targets, **options),
        )
    perturb((p for p in model.parameters() if p.requires_grad), parent + 1)
    publish(
        store,
        job,
        parent,
        adapter_tensors(model),
        kind="lora",
        lora=adapter_config(model),
        call_id=f"{parent}",
    )
    return logits(model)
