"""Prefixes loaded, reused or shared give what computing them gives, and are booked as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from functions.context import FunctionConfig
from functions.rollout import app
from functions.rollout.transformers_engine import TransformersEngine
from functions.weights.tensors import publish
from prefix_cache.tree import build_tree
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    ROUTES,
    CallInfo,
    ModelRef,
    PrefillDone,
    PrefillRequest,
    PrefixUse,
    RolloutRequest,
    SampleTask,
)
from rlhfless.objects import ObjectStore
from tests.support.rollout import (
    Outcome,
    collect,
    generate,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)

TEMPLATE = make_prompts([48], seed=5)[0]
SHORT = [TEMPLATE[:n] + tail for n, tail in zip((48, 48, 32), make_prompts([5, 9, 7]), strict=True)]
LONG = [TEMPLATE + tail for tail in make_prompts([90, 120, 70], seed=1)]
LAYOUTS = pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["expanded", "shared"])


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def cuts_of(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    tree = build_tree(prompts, 16)
    return [tree.cuts(number) for number in range(len(prompts))]


def with_prefix(request: RolloutRequest, **use: Any) -> RolloutRequest:
    use.setdefault("cuts", cuts_of(request.prompts))
    return msgspec.structs.replace(request, prefix=PrefixUse(**use))


def new_engine() -> TransformersEngine:
    return TransformersEngine(torch.device("cpu"))


def prefill(
    model: Path,
    prompts: Sequence[Sequence[int]],
    store: str,
    engine: TransformersEngine | None = None,
    *,
    cuts: list[list[int]] | None = None,
    version: int = 0,
    seconds: float = 60.0,
) -> PrefillDone:
    engine = engine or new_engine()
    request = PrefillRequest(
        call=CallInfo(id="prefill", job="job", step=0, deadline_s=60, store=store),
        model=ModelRef(path=str(model), job="job", version=version),
        prompts=[list(prompt) for prompt in prompts],
        cuts=cuts_of(prompts) if cuts is None else cuts,
    )
    context = make_context(store, seconds)
    engine.ensure(request.model, context.store)
    return engine.prefill(request, context)


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.tokens == other.tokens
    assert one.reasons == other.reasons
    for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def distinct(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens in all segments, each segment once."""
    return sum(node.end - node.start for node in build_tree(prompts, 16).nodes)


@LAYOUTS
@pytest.mark.parametrize("hit", ["zero", "template", "some", "whole"])
def test_loading_gives_what_computing_gives(
    tiny_model_dir: Path, store: str, prompts: list[list[int]], hit: str
) -> None:
    tasks = make_tasks(len(prompts), 4, 12)
    plain = make_request(tiny_model_dir, prompts, tasks, store=store)
    want = generate(plain)
    cuts = cuts_of(prompts)
    stored = {
        "zero": [[] for _ in cuts],
        "template": [ends[:1] for ends in cuts],
        "some": [cuts[0], [], cuts[2][:1]],
        "whole": cuts,
    }[hit]
    done = prefill(tiny_model_dir, prompts, store, cuts=stored)
    got = generate(with_prefix(plain), context=make_context(store))
    assert_same(got, want)
    end = got.end
    assert end.prefill_loaded == done.tokens_computed
    assert end.prefill_computed == distinct(prompts) + len(prompts) - end.prefill_loaded
    assert end.prefill_reused == 0
    assert end.prefill_saved == sum(4 * len(p) for p in prompts) - end.prefill_computed
    assert end.kv_loaded_bytes == end.prefill_loaded * end.kv_token_bytes
    assert end.kv_published_bytes == 0
    assert (end.kv_loads > 0) == (hit != "zero")
    assert end.prefill_s > 0
    assert end.kv_load_s > 0


@LAYOUTS
@pytest.mark.parametrize("max_batch", [0, 3])
def test_a_sample_that_moved_loads_its_prompt(
    tiny_model_dir: Path, store: str, prompts: list[list[int]], max_batch: int
) -> None:
    tasks = make_tasks(len(prompts), 4, 20)
    plain = make_request(tiny_model_dir, prompts, tasks, store=store, max_batch=max_batch)
    owner = generate(with_prefix(plain, publish=True), context=make_context(store))
    assert owner.end.kv_published_bytes > distinct(prompts) * owner.end.kv_token_bytes
    assert owner.end.kv_publish_s > 0
    moved = [
        msgspec.structs.replace(task, tokens=owner.tokens[n][: 3 + 4 * (n % 4)])
        for n, task in enumerate(tasks)
    ]
    request = msgspec.structs.replace(plain, samples=moved)
    got = generate(with_prefix(request), context=make_context(store))
    assert_same(got, generate(request))
    whole = [task.tokens + new for task, new in zip(moved, got.tokens, strict=True)]
    assert whole == owner.tokens
    replayed = sum(len(task.tokens) for task in moved)
    assert got.end.prefill_loaded == distinct(prompts)
    assert got.end.prefill_computed == len(prompts) + replayed


def test_prompts_with_and_without_cuts_are_admitted_together(
    tiny_model_dir: Path, store: str
) -> None:
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    cuts = [cuts_of(LONG)[0], [], []]
    prefill(tiny_model_dir, LONG, store, cuts=cuts)
    got = generate(with_prefix(plain, cuts=cuts), context=make_context(store))
    assert_same(got, generate(plain))
    assert got.end.prefill_loaded == len(LONG[0]) - 1


@LAYOUTS
def test_within_a_call_shared_segments_are_computed_once(
    tiny_model_dir: Path, store: str, prompts: list[list[int]]
) -> None:
    twice = [*prompts, *prompts]
    plain = make_request(tiny_model_dir, twice, make_tasks(len(twice), 2), store=store)
    use = with_prefix(plain, load=False)
    got = generate(use, context=make_context(store))
    assert_same(got, generate(plain))
    assert got.end.prefill_computed == distinct(prompts) + len(twice)
    assert got.end.prefill_loaded == got.end.prefill_reused == got.end.kv_loads == 0
    # One sample after the other: what an earlier one has left in memory is not run again.
    one_by_one = generate(msgspec.structs.replace(use, max_batch=1), context=make_context(store))
    assert_same(one_by_one, got)
    assert one_by_one.end.prefill_computed == distinct(prompts) + len(twice)
    assert one_by_one.end.prefill_reused == 0


def test_memory_serves_the_next_call_of_the_version_only(tiny_model_dir: Path, store: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    changed = {name: 1.1 * tensor.detach() for name, tensor in model.named_parameters()}
    publish(ObjectStore(store), "job", 0, changed, kind="full", call_id="train")
    engine = new_engine()
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    use = with_prefix(plain, load=False)
    first = generate(use, engine, make_context(store))
    second = generate(use, engine, make_context(store))
    assert_same(first, second)
    assert second.end.prefill_reused == distinct(LONG)
    assert second.end.prefill_computed == len(LONG)
    for version in (1, 0):
        model_ref = msgspec.structs.replace(plain.model, version=version)
        other = msgspec.structs.replace(plain, model=model_ref)
        got = generate(with_prefix(other, load=False), engine, make_context(store))
        assert got.end.prefill_reused == 0
        assert_same(got, generate(other, context=make_context(store)))


def test_a_version_never_loads_anothers(tiny_model_dir: Path, store: str) -> None:
    """Neither by its own name, nor when somebody has put an old version's bytes there."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    changed = {name: 1.1 * tensor.detach() for name, tensor in model.named_parameters()}
    objects = ObjectStore(store)
    publish(objects, "job", 0, changed, kind="full", call_id="train")
    prefill(tiny_model_dir, LONG, store)
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store, version=1)
    want = generate(plain, context=make_context(store))
    got = generate(with_prefix(plain), context=make_context(store))
    assert got.end.prefill_loaded == 0
    assert_same(got, want)
    prefill(tiny_model_dir, LONG, store, version=1)
    old = [objects.get(name) for name in objects.list("kv/job/v000000")]
    names = objects.list("kv/job/v000001")
    assert len(names) == len(old) == 4
    for name, data in zip(names, old, strict=True):
        objects.put(name, data)
    got = generate(with_prefix(plain), context=make_context(store))
    assert got.end.prefill_loaded == 0
    assert_same(got, want)


@pytest.mark.parametrize("damage", ["bytes", "truncated", "empty"])
def test_bad_bytes_are_computed_again_and_replaced(
    tiny_model_dir: Path, store: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    prefill(tiny_model_dir, LONG, store)
    objects = ObjectStore(store)
    names = objects.list("kv")
    for name in names:
        whole = bytearray(objects.get(name))
        whole[-7] ^= 4
        bad = {"bytes": bytes(whole), "truncated": bytes(whole[:-8]), "empty": b""}[damage]
        objects.put(name, bad)
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    got = generate(with_prefix(plain, publish=True), context=make_context(store))
    assert_same(got, generate(plain))
    assert got.end.prefill_loaded == 0
    assert "troubles of the store" in caplog.text
    again = generate(with_prefix(plain), context=make_context(store))
    assert_same(again, got)
    assert again.end.prefill_loaded == distinct(LONG)


class Broken(ObjectStore):
    """Takes and gives nothing."""

    def put(self, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def local_path(self, name: str) -> str | None:
        raise OSError(5, "Input/output error")


def test_a_call_goes_on_without_its_store(tiny_model_dir: Path, store: str) -> None:
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    context = make_context(store)
    context.store = Broken(store)
    got = generate(with_prefix(plain, publish=True), context=context)
    assert_same(got, generate(plain))
    assert got.end.kv_published_bytes == 0
    request = PrefillRequest(call=plain.call, model=plain.model, prompts=LONG, cuts=cuts_of(LONG))
    engine = new_engine()
    engine.ensure(plain.model, context.store)
    assert engine.prefill(request, context).published_bytes == 0


# --- prefill calls ------------------------------------------------------------------------------


def test_prefill_computes_each_segment_once_and_a_repeat_finds_them(
    tiny_model_dir: Path, store: str
) -> None:
    engine = new_engine()
    prompts = [*LONG, LONG[1], *SHORT]
    done = prefill(tiny_model_dir, prompts, store, engine)
    assert done.tokens_computed == distinct(prompts)
    assert done.tokens_loaded == 0
    assert done.published_bytes > 0
    names = ObjectStore(store).list("kv/job/v000000")
    assert len(names) == len(build_tree(prompts, 16).nodes)
    for repeat in (engine, new_engine()):
        again = prefill(tiny_model_dir, prompts, store, repeat)
        assert (again.tokens_computed, again.published_bytes) == (0, 0)
        assert again.tokens_loaded == distinct(prompts)


def test_prefill_puts_back_what_only_memory_has(tiny_model_dir: Path, store: str) -> None:
    engine, objects = new_engine(), ObjectStore(store)
    prefill(tiny_model_dir, LONG, store, engine)
    for name in objects.list("kv"):
        objects.delete(name)
    again = prefill(tiny_model_dir, LONG, store, engine)
    assert again.tokens_computed == 0
    assert again.published_bytes > 0
    assert prefill(tiny_model_dir, LONG, store).tokens_computed == 0


def test_prefill_runs_in_passes_and_stops_between_them(
    tiny_model_dir: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from functions.rollout import prefilling

    monkeypatch.setattr(prefilling, "PREFILL_CHUNK_TOKENS", 100)
    with pytest.raises(TransientError, match="deadline"):
        prefill(tiny_model_dir, LONG, store, seconds=-1.0)
    assert prefill(tiny_model_dir, LONG, store).tokens_computed == distinct(LONG)
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    got = generate(with_prefix(plain), context=make_context(store))
    assert_same(got, generate(plain))
    assert got.end.prefill_loaded == distinct(LONG)


@pytest.mark.parametrize(
    "cuts", [[[0], [], []], [[200], [], []], [[9, 9], [], []], [[]], [[], [], [], []]], ids=str
)
def test_cuts_that_cannot_be_served(
    tiny_model_dir: Path, store: str, cuts: list[list[int]]
) -> None:
    with pytest.raises(UserError, match="cuts"):
        prefill(tiny_model_dir, LONG, store, cuts=cuts)
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    if len(cuts) >= len(LONG):
        with pytest.raises(UserError, match="cuts"):
            generate(with_prefix(plain, cuts=cuts), context=make_context(store))


def test_the_function_serves_prefill_requests(tiny_model_dir: Path, store: str) -> None:
    function = app.create(FunctionConfig(threads=1))
    plain = make_request(tiny_model_dir, LONG, make_tasks(3, 2), store=store)
    request = PrefillRequest(call=plain.call, model=plain.model, prompts=LONG, cuts=cuts_of(LONG))
    assert PrefillRequest in function.handlers
    assert ROUTES[PrefillRequest][0] == "rollout"
    (done,) = function.handlers[PrefillRequest](request, make_context(store))
    assert isinstance(done, PrefillDone)
    assert done.tokens_computed == distinct(LONG)
    use = with_prefix(plain)
    got = collect(function.handlers[RolloutRequest](use, make_context(store)), use)
    assert got.end.prefill_reused == distinct(LONG)
    function.close()


def test_other_architectures_ignore_cuts(tmp_path: Path, store: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tasks = [SampleTask(id="a", prompt=0, seed=1, max_tokens=5)]
    plain = make_request(tmp_path / "gpt2", SHORT, tasks, store=store)
    got = generate(with_prefix(plain, publish=True), context=make_context(store))
    assert_same(got, generate(plain))
    assert got.end.kv_publish_s == got.end.kv_load_s == 0
    assert prefill(tmp_path / "gpt2", SHORT, store).tokens_computed == 0
    assert ObjectStore(store).list("kv") == []
