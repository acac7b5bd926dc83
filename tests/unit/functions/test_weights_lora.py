"""Adapters out of a peft model and back into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from functions.weights.lora import adapter_config, adapter_tensors, load_adapter
from rlhfless.errors import UserError
from tests.support.versions import logits, perturb, untied_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def untied_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    untied_model().save_pretrained(folder)
    return folder


def test_adapter_goes_back_into_a_peft_model(tiny_model_dir: Path) -> None:
    def fresh() -> Any:
        return get_peft_model(
            AutoModelForCausalLM.from_pretrained(tiny_model_dir),
            LoraConfig(r=2, target_modules=["q_proj"]),
        )

    trained, other = fresh(), fresh()
    perturb((p for p in trained.parameters() if p.requires_grad), 7)
    load_adapter(other, adapter_tensors(trained))
    assert torch.equal(logits(other), logits(trained))


def test_adapter_of_other_targets_is_refused(tiny_model_dir: Path) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir),
        LoraConfig(r=2, target_modules=["q_proj"]),
    )
    with pytest.raises(UserError, match="differ at"):
        load_adapter(model, {"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(2, 64)})


def test_embeddings_and_variants_of_lora_are_refused(untied_dir: Path) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(untied_dir),
        LoraConfig(r=2, target_modules=["embed_tokens"]),
    )
    with pytest.raises(UserError, match="only linear layers"):
        adapter_tensors(model)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(untied_dir),
        LoraConfig(r=2, target_modules=["q_proj"], use_rslora=True),
    )
    with pytest.raises(UserError, match="use_rslora"):
        adapter_config(model)
