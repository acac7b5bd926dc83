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
from rlhfless.checkpoints import checkpoint_prefix, read_checkpoint
from rlhfless.errors import CapacityError, ConflictError, TransientError
from rlhfless.messages import CallInfo, ExportDone, ExportRequest, Optimization, TrainRequest
from rlhfless.objects import ObjectStore, sha256
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


def to_store(job: Job, version: int, *, final: bool = False) -> ExportDone:
    function = create(FunctionConfig(workdir=os.path.dirname(job.store.url)))
    call = CallInfo(id=f"c{version}", job=job.name, step=7, deadline_s=60, store=job.store.url)
    request = ExportRequest(
        call=call,
        model=job.ref(version),
        store_prefix=checkpoint_prefix(job.name, 7),
        metrics={"reward/mean": 0.5},
        final=final,
    )
    (done,) = function.handlers[ExportRequest](request, job.context())
    assert isinstance(done, ExportDone)
    function.close()
    return done


@pytest.mark.parametrize("settings", [SETTINGS, LORA], ids=["full", "lora"])
def test_a_checkpoint_in_the_store_is_the_trained_model(
    settings: Optimization, tmp_path: Path, tiny_model_dir: Path
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir, settings=settings)
    trainer = new_trainer()
    job.train(trainer, job.request(0))
    prefix = checkpoint_prefix(job.name, 7)
    done = to_store(job, 1)
    assert done.folder == prefix
    manifest = read_checkpoint(job.store, prefix)
    assert manifest is not None
    assert (manifest.step, manifest.version, manifest.final) == (7, 1, False)
    assert manifest.metrics == {"reward/mean": 0.5}
    assert manifest.created_at > 1e9
    names = [file.name for file in manifest.files]
    assert names == done.files
    assert set(job.store.list(prefix)) == {f"{prefix}/{n}" for n in [*names, "manifest.json"]}
    assert ("adapter/adapter_config.json" in names) == (settings is LORA)
    for file in manifest.files:
        data = job.store.get(f"{prefix}/{file.name}")
        assert (file.size, file.sha256) == (len(data), sha256(data))
    loaded = AutoModelForCausalLM.from_pretrained(job.store.path(prefix))
    torch.testing.assert_close(logits(loaded), logits(trained(trainer)), rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(job.store.path(prefix))("a1").input_ids

    # A repeat is harmless and changes nothing.
    assert to_store(job, 1) == done
    assert read_checkpoint(job.store, prefix) == manifest


def test_a_checkpoint_is_there_whole_or_not(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    prefix = checkpoint_prefix(job.name, 7)
    put_file = type(job.store).put_file

    def fails(store: ObjectStore, name: str, path: str, *, durable: bool = False) -> None:
        if name.endswith("tokenizer.json"):
            raise CapacityError("the disk is full")
        put_file(store, name, path, durable=durable)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "put_file", fails)
        with pytest.raises(CapacityError):
            to_store(job, 0)
    assert job.store.list(prefix)
    assert read_checkpoint(job.store, prefix) is None
    to_store(job, 0, final=True)
    manifest = read_checkpoint(job.store, prefix)
    assert manifest is not None
    assert manifest.final


def test_what_a_killed_export_leaves_is_in_the_instance_s_own_folder(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else's: that folder is removed with the instance, however it ends."""
    job = Job(tmp_path / "store", tiny_model_dir)
    from_where: list[str] = []
    put_file = ObjectStore.put_file

    def noting(store: ObjectStore, name: str, path: str, *, durable: bool = False) -> None:
        from_where.append(path)
        put_file(store, name, path, durable=durable)

    monkeypatch.setattr(ObjectStore, "put_file", noting)
    to_store(job, 0)
    assert from_where
    assert all(path.startswith(f"{tmp_path}{os.sep}") for path in from_where)
