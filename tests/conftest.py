"""Fixtures every test may use: a tiny random model and its character tokenizer, made once a run."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import pytest

# Two cores are shared by whatever a test starts: one thread each, and no talk of parallelism.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
CHARACTERS = string.ascii_lowercase + string.digits + "=;? .,:!+-*/()[]<>_#\n'\"|"
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer(chat_template: str | None = None) -> Any:
    """One token a character, 64 in all; ``<pad>`` 0, ``<bos>`` 1, ``<eos>`` 2, ``<unk>`` 3."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    assert len(vocabulary) == 64
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(seed: int = 0, **changes: Any) -> Any:
    """A random Llama of 0.11M parameters (hidden 64, 2 layers, 4 heads, 2 key-value heads), with
    ``changes`` of its configuration."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    config = LlamaConfig(**shape | changes)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load; context 256 tokens.

    Random weights, wide enough that its next-token distribution is far from uniform. Has a chat
    template. Read it only: the whole run shares it.
    """
    folder = tmp_path_factory.mktemp("tiny-model")
    make_model().save_pretrained(folder)
    make_tokenizer(CHAT_TEMPLATE).save_pretrained(folder)
    return folder
