"""The quick start's tokenizer: one token a character, 64 in all."""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIAL_TOKENS = (PAD, BOS, EOS, UNKNOWN)
CHARACTERS = string.ascii_lowercase + string.digits + "=;? .,:!+-*/()[]<>_#\n'\"|"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
VOCABULARY_SIZE = 64


def build_tokenizer(context_tokens: int) -> PreTrainedTokenizerFast:
    """Byte-pair encoding without merges: every character of ``CHARACTERS`` is a token."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    assert len(vocabulary) == VOCABULARY_SIZE
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save so that transformers 4 and 5 both load it: the class is named as both know it."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
