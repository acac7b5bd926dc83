"""Adapters for vLLM are what peft itself would load, and go when they are not needed any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from functions.rollout.vllm_engine.adapters import Adapters, room_for
from functions.weights.lora import adapter_config, adapter_tensors
from functions.weights.tensors import publish
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.objects import ObjectStore
from tests.support.versions import logits, untied_model


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "store"))


def test_a_version_becomes_a_folder_that_peft_loads(tmp_path: Path, store: ObjectStore) -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"])
    model = get_peft_model(untied_model(), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    want, tensors, lora = logits(model), adapter_tensors(model), adapter_config(model)
    publish(store, "job", 0, tensors, kind="lora", call_id="call", lora=lora)
    adapters = Adapters(str(tmp_path))
    one, other = adapters.fetch(store, "job", 1), adapters.fetch(store, "job", 1)
    assert one.name == "job:1"
    assert one.id != other.id
    loaded = PeftModel.from_pretrained(untied_model(), one.folder).eval()
    torch.testing.assert_close(logits(loaded), want)
    assert not torch.allclose(logits(untied_model()), want)
    adapters.forget(one)
    assert not os.path.exists(one.folder)
    assert os.path.exists(other.folder)


def test_what_is_no_adapter_leaves_no_folder(tmp_path: Path, store: ObjectStore) -> None:
    tensors = {"lm_head.weight": torch.zeros(2, 2)}
    publish(store, "job", 0, tensors, kind="partial", call_id="call")
    work = tmp_path / "work"
    work.mkdir()
    adapters = Adapters(str(work))
    with pytest.raises(InternalError, match="no LoRA version"):
        adapters.fetch(store, "job", 1)
    with pytest.raises(TransientError, match="not in the store"):
        adapters.fetch(store, "job", 2)
    assert os.listdir(work) == []


def test_vllm_makes_room_for_some_ranks_only() -> None:
    assert [room_for(rank) for rank in (1, 2, 8, 9, 100, 512)] == [1, 8, 8, 16, 128, 512]
    with pytest.raises(UserError, match="rank 513"):
        room_for(513)
