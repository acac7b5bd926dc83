"""Weights come and go under running calls: no response mixes versions, nothing that was generated
is lost, and what is wrong with a version leaves the engine as it was."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from functions.readings import Measured
from functions.rollout.engine import Engine
from functions.weights.lora import adapter_config, adapter_tensors
from functions.weights.tensors import publish
from rlhfless.engines import EngineOptions
from rlhfless.errors import TransientError
from rlhfless.messages import ModelRef, RolloutRequest, SampleTask, Tokens
from rlhfless.objects import ObjectStore
from rlhfless.versions import read_manifest, version_folder
from tests.support.rollout import (
    Outcome,
    collect,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)
from tests.support.vllm_models import make_model

pytestmark = pytest.mark.slow

PROMPTS = make_prompts([9, 30])
LONG = 400


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("updated-model")
    make_model(0).save_pretrained(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path}/store")


def publish_model(store: ObjectStore, version: int, seed: int) -> Any:
    """A version whose model is ``make_model(seed)``; the model."""
    model = make_model(seed)
    tensors = dict(model.named_parameters())
    publish(store, "job", version - 1, tensors, kind="full", call_id=f"call-{version}")
    return model


def publish_adapter(store: ObjectStore, folder: Path, version: int, seed: int) -> Any:
    """A LoRA version of the model in ``folder``; the model with it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    targets = ["q_proj", "v_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=targets)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    publish(
        store,
        "job",
        version - 1,
        adapter_tensors(model),
        kind="lora",
        call_id=f"call-{version}",
        lora=adapter_config(model),
    )
    return model


def ask(
    folder: Path, store: ObjectStore, version: int, tasks: list[SampleTask], **others: Any
) -> RolloutRequest:
    return make_request(folder, PROMPTS, tasks, version=version, store=store.url, **others)


def assert_of(model: Any, request: RolloutRequest, outcome: Outcome) -> None:
    """All tokens have the log-probs that ``model`` gives them."""
    count = 0
    for task, tokens, logprobs in zip(
        request.samples, outcome.tokens, outcome.logprobs, strict=True
    ):
        if not tokens:
            continue
        before = request.prompts[task.prompt] + task.tokens
        with torch.no_grad():
            scores = model(torch.tensor([before + tokens])).logits[0, len(before) - 1 : -1]
        scores = torch.log_softmax(scores.float(), -1)
        want = scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).numpy()
        np.testing.assert_allclose(logprobs, want, atol=2e-4)
        count += len(tokens)
    assert count == outcome.end.generated_tokens > 0


def served(engine: Engine, request: RolloutRequest) -> Outcome:
    context = make_context(request.call.store)
    engine.ensure(request.model, context.store)
    return collect(engine.run(request, context), request)


def continued(task: SampleTask, tokens: list[int]) -> SampleTask:
    return msgspec.structs.replace(task, tokens=task.tokens + tokens)


class Running:
    """A call in a thread of its own; ``begun`` when it has streamed something."""

    def __init__(self, engine: Engine, request: RolloutRequest) -> None:
        self.request = request
        self.outcome = Outcome([[] for _ in request.samples], [[] for _ in request.samples])
        self.error: Exception | None = None
        self._engine = engine
        self._begun = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(60)

    def _run(self) -> None:
        context = make_context(self.request.call.store)
        try:
            self._engine.ensure(self.request.model, context.store)
            for frame in self._engine.run(self.request, context):
                self.outcome.add(frame, self.request)
                if isinstance(frame, Tokens):
                    self._begun.set()
        except Exception as error:
            self.error = error
        self._begun.set()

    def join(self) -> Outcome:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome


def value(engine: Engine, name: str) -> float:
    assert isinstance(engine, Measured)
    (found,) = [reading.value for reading in engine.readings() if reading.name == name]
    return found


def long_tasks(count: int) -> list[SampleTask]:
    return make_tasks(2, count // 2, LONG)


@pytest.fixture(scope="module")
def lora_engine(start_vllm: Callable[[EngineOptions], Engine]) -> Iterator[Engine]:
    engine = start_vllm(EngineOptions(name="vllm", kv_cache_bytes=64 << 20, lora_rank=4))
    yield engine
    engine.close()


@pytest.fixture(params=["full", "lora"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kind: str, request: pytest.FixtureRequest) -> Engine:
    name = {"full": "vllm_engine", "lora": "lora_engine"}[kind]
    found: Engine = request.getfixturevalue(name)
    return found


@pytest.fixture
def models(kind: str, store: ObjectStore, model_dir: Path) -> list[Any]:
    """What versions 0, 1 and 2 are."""
    if kind == "full":
        return [make_model(0), *(publish_model(store, v, v) for v in (1, 2))]
    return [make_model(0), *(publish_adapter(store, model_dir, v, v) for v in (1, 2))]


def test_every_version_is_the_models_there_and_back(
    engine: Engine, store: ObjectStore, models: list[Any], model_dir: Path
) -> None:
    for version in (1, 2, 0, 2):
        request = ask(model_dir, store, version, make_tasks(2, 2, 12))
        before = value(engine, "engine_weight_update_bytes")
        outcome = served(engine, request)
        assert_of(models[version], request, outcome)
        assert outcome.versions == {version}
        assert outcome.end.weights_pull_s > 0
        assert (outcome.end.weights_bytes > 0) == (version > 0)
        assert value(engine, "engine_weight_update_bytes") - before == outcome.end.weights_bytes
        again = served(engine, request)
        assert again.end.weights_pull_s == again.end.weights_bytes == 0
        assert again.tokens == outcome.tokens


def test_an_update_hands_back_what_runs_with_every_token(
    engine: Engine, store: ObjectStore, models: list[Any], model_dir: Path
) -> None:
    call = Running(engine, ask(model_dir, store, 1, long_tasks(4), max_batch=3))
    after = ask(model_dir, store, 2, make_tasks(2, 2, 12))
    assert_of(models[2], after, served(engine, after))
    first = call.join()
    assert call.error is None
    assert_of(models[1], call.request, first)
    assert sorted([*first.reasons, *first.end.unfinished]) == [0, 1, 2, 3]
    assert 3 in first.end.unfinished
    assert first.tokens[3] == []
    assert value(engine, "engine_running") == value(engine, "engine_kv_usage") == 0
    rest = [
        continued(task, tokens)
        for task, tokens in zip(call.request.samples, first.tokens, strict=True)
    ]
    request = ask(model_dir, store, 2, rest)
    assert_of(models[2], request, served(engine, request))


def test_calls_of_one_version_run_together(
    engine: Engine, store: ObjectStore, models: list[Any], model_dir: Path
) -> None:
    calls = [Running(engine, ask(model_dir, store, 1, long_tasks(2))) for _ in range(3)]
    alone = served(engine, calls[0].request)
    for call in calls:
        assert call.join().tokens == alone.tokens
        assert call.error is None
        assert_of(models[1], call.request, call.outcome)


def break_version(store: ObjectStore, how: str) -> None:
    manifest = read_manifest(store, "job", 2)
    assert manifest is not None
    name = next(iter(manifest.files))
    path = store.local_path(f"{version_folder('job', 2)}/{name}")
    assert path is not None
    if how == "missing":
        os.unlink(path)
    else:
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"oops")


@pytest.mark.parametrize("how", ["missing", "corrupt", "never was"])
def test_a_version_that_is_not_to_be_had_changes_nothing(
    engine: Engine, store: ObjectStore, models: list[Any], model_dir: Path, how: str
) -> None:
    if how != "never was":
        break_version(store, how)
    call = Running(engine, ask(model_dir, store, 1, long_tasks(2)))
    starts, failures = (
        value(engine, "engine_starts"),
        value(engine, "engine_weight_update_failures"),
    )
    wanted = ModelRef(path=str(model_dir), job="job", version=9 if how == "never was" else 2)
    with pytest.raises(TransientError, match=r"missing|corrupt|not in the store"):
        engine.ensure(wanted, store)
    assert value(engine, "engine_weight_update_failures") == failures + 1
    assert call.join().reasons == {0: "length", 1: "length"}
    assert_of(models[1], call.request, call.outcome)
    request = ask(model_dir, store, 0, make_tasks(2, 1, 8))
    assert_of(models[0], request, served(engine, request))
    assert value(engine, "engine_starts") == starts


def test_an_update_that_fails_half_way_costs_a_start_and_no_more(
    vllm_engine: Engine, store: ObjectStore, model_dir: Path
) -> None:
    model = make_model(0)
    odd = dict(model.named_parameters()) | {"model.norm.weight": torch.zeros(7)}
    publish(store, "job", 0, odd, kind="full", call_id="odd")
    request = ask(model_dir, store, 0, make_tasks(2, 1, 8))
    served(vllm_engine, request)
    starts = value(vllm_engine, "engine_starts")
    with pytest.raises(TransientError, match="could not take version 1"):
        vllm_engine.ensure(ModelRef(path=str(model_dir), job="job", version=1), store)
    assert_of(model, request, served(vllm_engine, request))
    assert value(vllm_engine, "engine_starts") == starts + 1


def test_an_engine_whose_core_is_killed_says_so_and_starts_again(
    vllm_engine: Engine, store: ObjectStore, model_dir: Path
) -> None:
    models = [make_model(0), publish_model(store, 1, 1)]
    call = Running(vllm_engine, ask(model_dir, store, 1, long_tasks(2)))
    cores = [child for child in multiprocessing.active_children() if "Core" in child.name]
    for core in cores:
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)
    call.join()
    assert isinstance(call.error, TransientError)
    assert "died" in str(call.error)
    assert any(call.outcome.tokens)
    request = ask(model_dir, store, 1, make_tasks(2, 2, 8))
    context = make_context(store.url)
    loaded = vllm_engine.ensure(request.model, store)
    assert loaded.load_s > 0
    assert_of(models[1], request, collect(vllm_engine.run(request, context), request))
