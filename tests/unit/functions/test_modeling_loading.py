"""Models that cannot be loaded, and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from functions.modeling import device_for, load_base
from rlhfless.errors import UserError
from tests.support.versions import ref

torch.set_num_threads(1)


def test_no_such_folder_or_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model folder"):
        load_base(ref(tmp_path / "missing"))
    with pytest.raises(UserError, match="is no model"):
        load_base(ref(Path("no-such-owner/no-such-model")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is no model"):
        load_base(ref(tmp_path / "empty"))


def test_not_a_causal_language_model(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no causal language model, but BertForSequence"):
        load_base(ref(tmp_path))


def test_unknown_dtype(tiny_model_dir: Path) -> None:
    with pytest.raises(UserError, match="unknown dtype int8"):
        load_base(ref(tiny_model_dir, dtype="int8"))


def test_checkpoint_without_weights(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_dir / "config.json", tmp_path)
    with pytest.raises(UserError, match="cannot load the model"):
        load_base(ref(tmp_path))


def test_torn_checkpoint(tiny_model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_dir / "config.json", tmp_path)
    whole = (tiny_model_dir / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(UserError, match=r"cannot load the model .*: .*header"):
        load_base(ref(tmp_path))


def test_incomplete_checkpoint(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deeper"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"not whole: \d+ tensors are missing"):
        load_base(ref(folder))


def test_accelerators() -> None:
    assert device_for("cpu") == torch.device("cpu")
    if torch.cuda.is_available():
        assert device_for("nvidia-l4").type == "cuda"
    else:
        with pytest.raises(UserError, match="nvidia-l4, but has no CUDA device"):
            device_for("nvidia-l4")
