import json
from pathlib import Path

import pytest

from rlhfless.errors import UserError
from simulator.model_shape import known_shapes, load_shape, shape_from_config

PUBLISHED = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.2-1B": 1_235_814_400,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B": 46_702_792_704,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-30B-A3B": 30_532_122_624,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
}
"""Parameters in the published weights (the totals of their safetensors indices)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name: str) -> None:
    assert known_shapes()[name].parameters == PUBLISHED[name]


def test_only_the_experts_of_a_token_are_active() -> None:
    mixture = known_shapes()["Qwen3-30B-A3B"]
    assert mixture.active_parameters == pytest.approx(3.3e9, rel=0.02)
    dense = known_shapes()["Llama-3.1-8B"]
    assert dense.active_parameters == dense.parameters


def test_keys_and_values_count_their_own_heads() -> None:
    assert known_shapes()["Llama-3.1-8B"].kv_bytes_per_token == 131_072
    assert known_shapes()["Llama-2-7B"].kv_bytes_per_token == 4 * 131_072
    assert load_shape("Llama-3.1-8B", "float32").kv_bytes_per_token == 2 * 131_072


def test_weights_take_their_data_type() -> None:
    assert load_shape("Qwen2.5-0.5B").weight_bytes == 2 * 494_032_768
    assert load_shape("Qwen2.5-0.5B", "float8").weight_bytes == 494_032_768


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M"),
    ],
)
def test_names_are_known_as_the_hub_writes_them(written: str, known: str) -> None:
    assert load_shape(written).name == known


def test_an_unknown_name_is_answered_by_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no model Qwen2.5-8B; did you mean Qwen2.5-"):
        load_shape("Qwen2.5-8B")


def test_a_folder_with_a_config_is_read(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 384,
        "vocab_size": 64,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        shape = load_shape(str(path))
        assert (shape.kv_heads, shape.head_dim, shape.dtype) == (4, 32, "float32")
        assert shape.parameters == 434_816
    assert shape_from_config({"text_config": config}).parameters == 434_816


def test_gpt2_goes_by_its_own_names() -> None:
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    shape = shape_from_config(config)
    assert (shape.intermediate, shape.gated, shape.tied) == (3072, False, True)
    assert shape.parameters == pytest.approx(124_439_808, rel=0.01)


def test_shared_and_dense_layers_of_a_mixture_are_counted() -> None:
    base = {
        "num_hidden_layers": 4,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 10,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 4,
    }
    plain = shape_from_config(base).parameters
    shared = shape_from_config(base | {"n_shared_experts": 2}).parameters
    assert shared - plain == 4 * (3 * 8 * 8 + 8)
    dense = shape_from_config(base | {"first_k_dense_replace": 1}).parameters
    assert dense - plain == 3 * 8 * 32 - (6 * 3 * 8 * 4 + 6 * 8)


def test_what_is_missing_or_not_understood_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no hidden_size"):
        shape_from_config({"num_hidden_layers": 2})
    with pytest.raises(UserError, match="latent attention"):
        shape_from_config({"kv_lora_rank": 512})
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(UserError, match=r"not a model's config.json"):
        load_shape(str(tmp_path))
    broken.write_text("[]")
    with pytest.raises(UserError, match="no mapping"):
        load_shape(str(tmp_path))
