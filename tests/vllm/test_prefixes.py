"""Prefix KV over two vLLM engines, each with a core process and a cache of its own."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from controller.garbage import collect_job, collect_step
from functions.rollout.engine import Engine
from functions.weights.tensors import publish
from prefix_cache.keys import version_prefix
from rlhfless.engines import EngineOptions
from rlhfless.errors import TransientError
from rlhfless.messages import (
    CallInfo,
    ModelRef,
    PrefillDone,
    PrefillRequest,
    PrefixUse,
    RolloutRequest,
)
from rlhfless.objects import ObjectStore
from tests.support.rollout import (
    Outcome,
    generate,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)
from tests.support.vllm_models import make_model as make_small_model
from tests.vllm.conftest import Start

pytestmark = pytest.mark.slow

BLOCK = 128
LENGTH = 1000
STORED = LENGTH // BLOCK * BLOCK
TAIL = LENGTH - STORED
PROMPT = make_prompts([LENGTH], seed=5)[0]
LOAD = PrefixUse(cuts=[[LENGTH - 1]])
PUBLISH = PrefixUse(cuts=[[LENGTH - 1]], load=False, publish=True)


def make_model(seed: int = 0) -> Any:
    """With room for long prompts."""
    return make_small_model(seed, context=1200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("long-model")
    make_model().save_pretrained(found)
    return found


@pytest.fixture(scope="module")
def engines(start_vllm: Start) -> Iterator[tuple[Engine, Engine]]:
    options = EngineOptions(name="vllm", kv_cache_bytes=16 << 20)
    both = start_vllm(options), start_vllm(options)
    yield both
    for engine in both:
        engine.close()


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path))


def request_of(
    folder: Path,
    use: PrefixUse | None,
    *,
    prompt: list[int] = PROMPT,
    samples: int = 1,
    version: int = 0,
    **more: Any,
) -> RolloutRequest:
    tasks = make_tasks(1, samples, 12)
    return replace(make_request(folder, [prompt], tasks, version=version, **more), prefix=use)


def run(engine: Engine, request: RolloutRequest, store: ObjectStore) -> Outcome:
    return generate(request, engine, make_context(store.url))


def fresh(engine: Engine, folder: Path, store: ObjectStore, version: int = 0) -> None:
    """Empty the engine's own cache: it serves another job's version, then this one."""
    change(store, "elsewhere", 0, 9)
    engine.ensure(ModelRef(path=str(folder), job="elsewhere", version=1), store)
    engine.ensure(ModelRef(path=str(folder), job="job", version=version), store)


def change(store: ObjectStore, job: str, parent: int, seed: int) -> Any:
    """Publish version ``parent + 1``: other attention, so that other keys and values follow."""
    model = make_model(seed)
    publish(store, job, parent, dict(model.named_parameters()), kind="full", call_id=str(parent))
    return model


def prefill(
    engine: Engine,
    folder: Path,
    store: ObjectStore,
    prompts: list[list[int]] | None = None,
    version: int = 0,
) -> PrefillDone:
    prompts = prompts or [PROMPT]
    request = PrefillRequest(
        call=CallInfo(id="prefill", job="job", step=0, deadline_s=60, store=store.url),
        model=ModelRef(path=str(folder), job="job", version=version),
        prompts=prompts,
        cuts=[[len(prompt) - 1] for prompt in prompts],
    )
    engine.ensure(request.model, store)
    return engine.prefill(request, make_context(store.url))


def objects(store: ObjectStore, version: int = 0) -> list[str]:
    return store.list(version_prefix("job", version))


def assert_of(outcome: Outcome, model: Any, prompt: list[int] = PROMPT) -> None:
    """Its log-probs are those of ``model``, given the whole prompt."""
    for tokens, logprobs in zip(outcome.tokens, outcome.logprobs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        scores = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens).unsqueeze(1))
        np.testing.assert_allclose(logprobs, scores.squeeze(1).numpy(), atol=1e-4)


def same(one: Outcome, other: Outcome) -> None:
    assert one.tokens == other.tokens
    for first, second in zip(one.logprobs, other.logprobs, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-4)


def test_a_prompt_prefilled_by_one_engine_is_loaded_by_another(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    one, other = engines
    fresh(one, folder, store)
    computed = run(one, request_of(folder, PUBLISH), store)
    assert computed.end.prefill_computed == LENGTH
    assert computed.end.kv_published_bytes > STORED * computed.end.kv_token_bytes
    assert computed.end.kv_block_tokens == BLOCK
    assert len(objects(store)) == STORED // BLOCK

    fresh(other, folder, store)
    loaded = run(other, request_of(folder, LOAD), store)
    same(loaded, computed)
    assert_of(loaded, make_model())
    end = loaded.end
    assert (end.prefill_computed, end.prefill_loaded) == (TAIL, STORED)
    assert end.kv_loads == 1
    assert end.kv_loaded_bytes == STORED * end.kv_token_bytes
    assert end.kv_load_s > 0


def test_a_group_on_two_engines_has_its_prompt_prefilled_once(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    for engine in engines:
        fresh(engine, folder, store)
    done = prefill(engines[0], folder, store)
    assert (done.tokens_computed, done.tokens_loaded) == (STORED, 0)
    assert done.published_bytes > 0
    assert len(objects(store)) == STORED // BLOCK  # when the call ends they are there
    outcomes = [run(engine, request_of(folder, LOAD, samples=4), store) for engine in engines]
    # Nobody computes more than what fills no block.
    assert [each.end.prefill_computed for each in outcomes] == [4 * TAIL, 4 * TAIL]
    assert [each.end.prefill_loaded for each in outcomes] == [0, STORED]
    same(*outcomes)
    again = prefill(engines[1], folder, store)
    assert (again.tokens_computed, again.published_bytes) == (0, 0)


def test_what_a_call_may_not_load_or_publish_it_does_not(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    one, other = engines
    for use in (None, PrefixUse(cuts=[[LENGTH - 1]], load=True, publish=False)):
        fresh(one, folder, store)
        assert run(one, request_of(folder, use), store).end.prefill_computed == LENGTH
        assert not objects(store)
    prefill(one, folder, store)
    for use in (None, PrefixUse(cuts=[[LENGTH - 1]], load=False), PrefixUse(cuts=[[]], load=True)):
        fresh(other, folder, store)
        end = run(other, request_of(folder, use), store).end
        assert (end.prefill_computed, end.prefill_loaded) == (LENGTH, 0)
    # Only as far as the cut.
    fresh(other, folder, store)
    end = run(other, request_of(folder, PrefixUse(cuts=[[2 * BLOCK + 5]])), store).end
    assert (end.prefill_computed, end.prefill_loaded) == (LENGTH - 2 * BLOCK, 2 * BLOCK)


def test_prompts_that_fill_no_block_are_left_alone(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    one, other = engines
    short = make_prompts([BLOCK, 9], seed=3)
    done = prefill(one, folder, store, short)
    assert (done.tokens_computed, done.publish_s) == (0, 0.0)
    assert not objects(store)
    (shortest,) = make_prompts([BLOCK + 1], seed=4)
    assert prefill(one, folder, store, [shortest]).tokens_computed == BLOCK
    fresh(other, folder, store)
    use = PrefixUse(cuts=[[BLOCK]])
    loaded = run(other, request_of(folder, use, prompt=shortest), store)
    assert (loaded.end.prefill_computed, loaded.end.prefill_loaded) == (1, BLOCK)
    assert_of(loaded, make_model(), shortest)


@pytest.mark.parametrize("same_salt", [False, True])
def test_other_weights_never_get_old_keys_and_values(
    engines: tuple[Engine, Engine],
    folder: Path,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    same_salt: bool,
) -> None:
    from functions.rollout.vllm_engine.updating import Updater

    if same_salt:  # then vLLM's hashes do not tell the versions apart
        monkeypatch.setattr(Updater, "salt", property(lambda _: "the same"))
    both = PrefixUse(cuts=[[LENGTH - 1]], load=True, publish=True)
    models = {0: make_model(), 1: change(store, "job", 0, 1), 2: change(store, "job", 1, 2)}
    for engine in engines:
        fresh(engine, folder, store)
    seen: set[int] = set()
    for version in (0, 1, 0, 2, 1):
        for engine in engines:
            outcome = run(engine, request_of(folder, both, version=version), store)
            assert_of(outcome, models[version])
            # What a version was asked for before is in the store, and right; else it is computed.
            loaded = STORED if version in seen else 0
            assert outcome.end.prefill_loaded == loaded
            assert outcome.end.prefill_computed == LENGTH - loaded
            assert len(objects(store, version)) == STORED // BLOCK
            seen.add(version)


def test_objects_of_other_weights_under_the_right_name_are_not_taken(
    engines: tuple[Engine, Engine],
    folder: Path,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from functions.rollout.vllm_engine.updating import Updater

    monkeypatch.setattr(Updater, "salt", property(lambda _: "the same"))
    new = change(store, "job", 0, 1)
    for engine in engines:
        fresh(engine, folder, store)
    prefill(engines[0], folder, store)
    old, forged = version_prefix("job", 0), version_prefix("job", 1)
    shutil.copytree(store.path(old), store.path(forged))
    outcome = run(engines[1], request_of(folder, LOAD, version=1), store)
    assert outcome.end.prefill_computed == LENGTH
    assert_of(outcome, new)


def test_an_update_in_the_middle_of_publishing_leaves_only_what_is_right(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    one, other = engines
    models = {0: make_model(), 1: change(store, "job", 0, 1)}
    fresh(one, folder, store)
    prompts = make_prompts([LENGTH] * 12, seed=8)

    def fill() -> None:
        try:
            prefill(one, folder, store, prompts)
        except TransientError:
            return  # told of the update

    filling = threading.Thread(target=fill)
    filling.start()
    while not objects(store):
        assert filling.is_alive()
    one.ensure(ModelRef(path=str(folder), job="job", version=1), store)
    after = [run(one, request_of(folder, LOAD, prompt=p, version=1), store) for p in prompts]
    filling.join()
    fresh(other, folder, store)
    for prompt, outcome in zip(prompts, after, strict=True):
        assert_of(outcome, models[1], prompt)
        assert_of(run(other, request_of(folder, LOAD, prompt=prompt), store), models[0], prompt)


@pytest.mark.parametrize("harm", ["damaged", "cut short", "missing"])
def test_what_cannot_be_loaded_is_computed(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore, harm: str
) -> None:
    one, other = engines
    fresh(one, folder, store)
    expected = run(one, request_of(folder, PUBLISH), store)
    names = sorted(objects(store), key=lambda name: os.stat(store.path(name)).st_mtime)
    for name in names[2:4]:
        match harm:
            case "damaged":
                data = bytearray(store.get(name))
                data[-100] ^= 1
                store.put(name, bytes(data))
            case "cut short":
                store.put(name, store.get(name)[:-100])
            case _:
                store.delete(name)
    fresh(other, folder, store)
    outcome = run(other, request_of(folder, PrefixUse(cuts=LOAD.cuts, publish=True)), store)
    same(outcome, expected)
    assert TAIL < outcome.end.prefill_computed <= LENGTH
    # What was harmed is there again, whole.
    assert len(objects(store)) == STORED // BLOCK
    fresh(one, folder, store)
    assert run(one, request_of(folder, LOAD), store).end.prefill_computed == TAIL


def test_collected_versions_are_computed_again(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore
) -> None:
    one, other = engines
    change(store, "job", 0, 1)
    fresh(one, folder, store)
    prefill(one, folder, store)
    prefill(one, folder, store, version=1)
    assert objects(store, 0)
    collect_step(store, "job", step=0, version=1, keep_versions=2, kv_bytes=1 << 30)
    assert not objects(store, 0)
    assert len(objects(store, 1)) == STORED // BLOCK
    fresh(other, folder, store)
    assert run(other, request_of(folder, LOAD), store).end.prefill_computed == LENGTH
    assert run(other, request_of(folder, LOAD, version=1), store).end.prefill_computed == TAIL
    collect_job(store, "job")
    assert not objects(store, 1)


def test_a_store_that_takes_nothing_costs_a_prefill_and_no_more(
    engines: tuple[Engine, Engine], folder: Path, store: ObjectStore, tmp_path: Path
) -> None:
    one, other = engines
    (tmp_path / "kv").write_text("in the way of the folder of that name")
    for engine in engines:
        fresh(engine, folder, store)
    done = prefill(one, folder, store)
    assert (done.tokens_computed, done.published_bytes) == (STORED, 0)
    outcome = run(other, request_of(folder, LOAD), store)
    assert outcome.end.prefill_computed == LENGTH
    assert_of(outcome, make_model())


def test_a_prefill_that_is_not_waited_for_only_costs_what_it_saves(
    engines: tuple[Engine, Engine],
    folder: Path,
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from functions.rollout.vllm_engine import kv_prefill

    monkeypatch.setattr(kv_prefill, "ARRIVE_S", 0.0)
    for engine in engines:
        fresh(engine, folder, store)
    prefill(engines[0], folder, store)
    outcome = run(engines[1], request_of(folder, LOAD), store)
    assert_of(outcome, make_model())
    assert outcome.end.prefill_computed + outcome.end.prefill_loaded == LENGTH


def test_nothing_is_left_in_shared_memory(engines: tuple[Engine, Engine], folder: Path) -> None:
    for engine in engines:
        engine.ensure(ModelRef(path=str(folder), job="job", version=0), ObjectStore("memory://"))
    assert not list(Path("/dev/shm").glob("vllm_offload_*"))
