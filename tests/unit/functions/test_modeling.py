"""A model moved between versions equals the model that was trained, in any order of moves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from functions.modeling import VersionedModel
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import ModelRef
from rlhfless.objects import ObjectStore
from rlhfless.versions import version_folder
from tests.support.versions import logits, ref, train_full, train_lora, train_top, untied_model

torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def untied_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    untied_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def assert_moves(
    model: VersionedModel, store: ObjectStore, moves: list[tuple[ModelRef, torch.Tensor]]
) -> None:
    for target, expected in moves:
        model.ensure(target, store)
        assert model.version == target.version
        torch.testing.assert_close(logits(model.model), expected, atol=5e-5, rtol=1e-5)


# --- moving between versions ------------------------------------------------------------------


def test_full_versions_forward_and_backward(tiny_model_dir: Path, store: ObjectStore) -> None:
    base = logits(AutoModelForCausalLM.from_pretrained(tiny_model_dir))
    at = [base, *(train_full(tiny_model_dir, store, parent) for parent in range(3))]
    assert not torch.allclose(at[1], at[2], atol=1e-2)
    model = VersionedModel()
    assert_moves(
        model, store, [(ref(tiny_model_dir, v), at[v]) for v in (0, 1, 2, 3, 1, 0, 3, 0, 2)]
    )
    assert torch.equal(logits(model.model), at[2]), "exact, not nearly so"


def test_versions_of_several_kinds_follow_each_other(
    tiny_model_dir: Path, store: ObjectStore
) -> None:
    base = logits(AutoModelForCausalLM.from_pretrained(tiny_model_dir))
    at = [
        base,
        train_full(tiny_model_dir, store, 0),
        train_top(tiny_model_dir, store, 1),
        train_lora(tiny_model_dir, store, 2, ["q_proj", "down_proj"]),
        train_lora(tiny_model_dir, store, 3, ["v_proj", "lm_head"]),
    ]
    order = (1, 2, 1, 0, 2, 3, 2, 3, 0, 4, 1, 4, 3, 4, 0, 1, 4, 2, 0)
    assert_moves(VersionedModel(), store, [(ref(tiny_model_dir, v), at[v]) for v in order])


def test_an_adapted_head_leaves_the_tied_embedding_alone(
    tiny_model_dir: Path, store: ObjectStore
) -> None:
    expected = train_lora(tiny_model_dir, store, 0, ["lm_head"])
    model = VersionedModel()
    assert_moves(model, store, [(ref(tiny_model_dir, 1), expected)])
    embedding = model.model.get_input_embeddings().weight
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir).get_input_embeddings().weight
    assert torch.equal(embedding, base)


def test_a_model_with_an_adapted_tied_head_saves_and_loads(
    tiny_model_dir: Path, store: ObjectStore, tmp_path: Path
) -> None:
    expected = train_lora(tiny_model_dir, store, 0, ["lm_head", "q_proj"])
    model = VersionedModel()
    model.ensure(ref(tiny_model_dir, 1), store)
    model.model.save_pretrained(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(logits(saved), expected, atol=5e-5, rtol=1e-5)


def test_untied_model(untied_dir: Path, store: ObjectStore) -> None:
    base = logits(AutoModelForCausalLM.from_pretrained(untied_dir))
    full = train_full(untied_dir, store, 0)
    lora = train_lora(untied_dir, store, 1, ["lm_head", "o_proj"])
    at = [base, full, lora]
    assert_moves(VersionedModel(), store, [(ref(untied_dir, v), at[v]) for v in (2, 1, 0, 1, 2, 0)])


def test_gpt2_keeps_its_weights_transposed(gpt2_dir: Path, store: ObjectStore) -> None:
    base = logits(AutoModelForCausalLM.from_pretrained(gpt2_dir))
    lora = train_lora(gpt2_dir, store, 0, ["c_attn", "c_proj"], fan_in_fan_out=True)
    at = [base, lora]
    assert_moves(VersionedModel(), store, [(ref(gpt2_dir, v), at[v]) for v in (1, 0, 1)])


def test_two_jobs_on_one_base(tiny_model_dir: Path, store: ObjectStore) -> None:
    one = train_full(tiny_model_dir, store, 0, "one")
    two = train_lora(tiny_model_dir, store, 0, ["q_proj"], "two")
    first, second = ref(tiny_model_dir, 1, "one"), ref(tiny_model_dir, 1, "two")
    assert_moves(
        VersionedModel(), store, [(first, one), (second, two), (first, one), (second, two)]
    )


def test_another_base_is_loaded_anew(
    tiny_model_dir: Path, untied_dir: Path, store: ObjectStore
) -> None:
    trained = train_full(tiny_model_dir, store, 0)
    other = logits(AutoModelForCausalLM.from_pretrained(untied_dir))
    assert_moves(
        VersionedModel(),
        store,
        [
            (ref(tiny_model_dir, 1), trained),
            (ref(untied_dir), other),
            (ref(tiny_model_dir, 1), trained),
        ],
    )


def test_parameters_stay_where_they_are(tiny_model_dir: Path, store: ObjectStore) -> None:
    train_full(tiny_model_dir, store, 0)
    train_lora(tiny_model_dir, store, 1, ["q_proj", "down_proj"])
    model = VersionedModel()
    model.ensure(ref(tiny_model_dir), store)
    addresses = [p.data_ptr() for p in model.model.parameters()]
    for version in (1, 2, 0, 1):
        model.ensure(ref(tiny_model_dir, version), store)
        assert [p.data_ptr() for p in model.model.parameters()] == addresses


def test_base_copies_are_kept_of_overridden_tensors_only(
    tiny_model_dir: Path, store: ObjectStore
) -> None:
    train_lora(tiny_model_dir, store, 0, ["q_proj"])
    model = VersionedModel()
    model.ensure(ref(tiny_model_dir, 1), store)
    assert model._overlay is not None
    assert set(model._overlay._pristine) == {
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)
    }


def test_stats_and_repeats(tiny_model_dir: Path, store: ObjectStore) -> None:
    train_top(tiny_model_dir, store, 0)
    model = VersionedModel()
    assert model.ensure(ref(tiny_model_dir), store).bytes == 0
    stats = model.ensure(ref(tiny_model_dir, 1), store)
    (file,) = [n for n in store.list("weights/j") if n.endswith(".safetensors")]
    assert stats.bytes == len(store.get(file))
    assert stats.seconds > 0
    again = model.ensure(ref(tiny_model_dir, 1), store)
    assert (again.seconds, again.bytes) == (0.0, 0)


def test_bfloat16_where_asked_for(tiny_model_dir: Path, store: ObjectStore) -> None:
    trained = train_full(tiny_model_dir, store, 0)
    model = VersionedModel()
    model.ensure(ref(tiny_model_dir, 1, dtype="bfloat16"), store)
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(logits(model.model).float(), trained, atol=0.5, rtol=0.1)
    model.ensure(ref(tiny_model_dir, 1), store)
    assert torch.equal(logits(model.model), trained)


def test_model_is_for_inference(tiny_model_dir: Path, store: ObjectStore) -> None:
    model = VersionedModel()
    with pytest.raises(InternalError, match="no version"):
        _ = model.model
    model.ensure(ref(tiny_model_dir), store)
    assert not model.model.training
    assert not any(p.requires_grad for p in model.model.parameters())
    model.close()
    with pytest.raises(InternalError, match="no version"):
        _ = model.model


# --- versions that cannot be had --------------------------------------------------------------


def test_failed_pull_leaves_the_model_as_it_was(tiny_model_dir: Path, store: ObjectStore) -> None:
    first = train_full(tiny_model_dir, store, 0)
    train_full(tiny_model_dir, store, 1)
    (file,) = [n for n in store.list(version_folder("j", 2)) if n.endswith(".safetensors")]
    data = store.get(file)
    store.put(file, data[:-1] + bytes([data[-1] ^ 1]))
    model = VersionedModel()
    assert_moves(model, store, [(ref(tiny_model_dir, 1), first)])
    with pytest.raises(TransientError, match="corrupt"):
        model.ensure(ref(tiny_model_dir, 2), store)
    assert model.version == 1
    assert torch.equal(logits(model.model), first)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_version_of_another_model_is_refused_whole(
    tiny_model_dir: Path, untied_dir: Path, store: ObjectStore, kind: str
) -> None:
    if kind == "full":
        train_full(untied_dir, store, 0)
    else:
        train_lora(untied_dir, store, 0, ["q_proj", "down_proj"])
    base = logits(AutoModelForCausalLM.from_pretrained(tiny_model_dir))
    model = VersionedModel()
    model.ensure(ref(tiny_model_dir), store)
    with pytest.raises(UserError, match="does not fit the model"):
        model.ensure(ref(tiny_model_dir, 1), store)
    assert torch.equal(logits(model.model), base)
