from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from functions.context import FunctionConfig
from functions.training.app import create
from functions.training.trainer import Trainer
from rlhfless.errors import ConflictError, TransientError
from rlhfless.messages import CallInfo, ExportDone, ExportRequest, Optimization, TrainRequest
from tests.support.training import LORA, SETTINGS, Job, new_trainer

TOKENS = torch.arange(4, 40)[None]
TOP = msgspec.structs.replace(SETTINGS, trainable="top_layers", top_layers=1)


def export(job: Job, version: int, folder: Path, chat_template: str | None = None) -> ExportDone:
    function = create(FunctionConfig())
    request = ExportRequest(
        call=CallInfo(id=f"e{version}", job=job.name, step=0, deadline_s=60, store=job.store.url),
        model=job.ref(version),
        folder=str(folder),
        chat_template=chat_template,
    )
    (done,) = function.handlers[ExportRequest](request, job.context())
    assert isinstance(done, ExportDone)
    function.close()
    return done


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=TOKENS).logits


def trained(trainer: Trainer) -> torch.nn.Module:
    assert trainer._cached is not None
    model = trainer._cached.state.learner.policy.model
    assert isinstance(model, torch.nn.Module)
    return model


@pytest.mark.parametrize("settings", [SETTINGS, TOP, LORA], ids=["full", "top_layers", "lora"])
def test_an_exported_folder_is_the_trained_model(
    settings: Optimization, tmp_path: Path, tiny_model_dir: Path
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir, settings=settings)
    trainer = new_trainer()
    for parent in range(2):
        job.train(trainer, job.request(parent))
    folder = tmp_path / "runs" / "final"
    done = export(job, 2, folder)
    assert done.folder == str(folder)
    assert set(done.files) == {
        os.path.relpath(path, folder) for path in folder.rglob("*") if path.is_file()
    }
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    expected = logits(trained(trainer))
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    assert not torch.allclose(logits(base), expected, rtol=1e-4, atol=1e-4)

    tokenizer, original = (AutoTokenizer.from_pretrained(p) for p in (folder, tiny_model_dir))
    chat = [{"role": "user", "content": "1+1=?"}]
    assert tokenizer("a1=4;").input_ids == original("a1=4;").input_ids
    assert tokenizer.apply_chat_template(chat, tokenize=False) == original.apply_chat_template(
        chat, tokenize=False
    )
    assert (folder / "adapter").exists() == (settings is LORA)
    assert [p.name for p in folder.parent.iterdir()] == ["final"]  # no temporary left


def test_the_adapter_alone_gives_the_same_model(tmp_path: Path, tiny_model_dir: Path) -> None:
    from peft import PeftModel

    job = Job(tmp_path / "store", tiny_model_dir, settings=LORA)
    trainer = new_trainer()
    job.train(trainer, job.request(0))
    export(job, 1, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    model = PeftModel.from_pretrained(base, tmp_path / "out" / "adapter")
    torch.testing.assert_close(logits(model), logits(trained(trainer)))
    config = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_model_dir)


def test_any_version_can_be_exported_and_an_export_replaced(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    trainer = new_trainer()
    for parent in range(2):
        job.train(trainer, job.request(parent))
    found = []
    for version in (0, 1, 2):
        export(job, version, tmp_path / "out")
        found.append(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")))
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    torch.testing.assert_close(found[0], logits(base))
    assert not torch.equal(found[1], found[0]) and not torch.equal(found[2], found[1])


def test_the_jobs_chat_template_goes_with_the_model(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path, tiny_model_dir)
    template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    export(job, 0, tmp_path / "out", template)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert text == "[a]"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(ConflictError, match="no exported model"):
        export(job, 0, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "words"


def test_a_version_that_does_not_exist_leaves_nothing(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    with pytest.raises(TransientError, match="version 7"):
        export(job, 7, tmp_path / "runs" / "out")
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_function_trains(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    function = create(FunctionConfig())
    *_, done = function.handlers[TrainRequest](job.request(0), job.context())
    assert getattr(done, "version", None) == 1
    function.close()
