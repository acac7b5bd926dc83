"""What the pretended model says: a response's length follows from its prompt, its first token and
the weight version, every other token from the one before it.

So a response is a function of (prompt, seed, version) as with any model, and no instance need be
told how long it will be: whoever continues a sample knows from its tokens. Its folder looks like a
model's (``config.json``, a tokenizer) and holds the recorded workload: the mean length of each
prompt's responses.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlhfless.errors import UserError
from rlhfless.seeds import derive

WORKLOAD_FILE = "workload.json"
VOCABULARY = 128
"""Token 0 ends a response, and token 1 is for words that are unknown."""
EOS = 0
FIRST_WORD = 2
_DEVIATES = [
    NormalDist().inv_cdf((i + 0.5) / (VOCABULARY - FIRST_WORD))
    for i in range(VOCABULARY - FIRST_WORD)
]


@dataclass(frozen=True)
class Workload:
    """``means``: prompt (``prompt_name``) -> mean response length. ``scatter`` is the standard
    deviation of the logarithm of a response's length about its prompt's mean, ``drift`` that of the
    prompt's mean from version to version. Responses have 2 .. ``longest`` tokens."""

    means: dict[str, float]
    scatter: float
    drift: float
    longest: int
    context: int

    @classmethod
    def read(cls, folder: str) -> Workload:
        try:
            return cls(**json.loads((Path(folder) / WORKLOAD_FILE).read_text()))
        except FileNotFoundError as error:
            raise UserError(f"{folder} holds no recorded workload", param="model.path") from error

    def length(self, prompt: str, version: int, first: int) -> int:
        """Of the response to ``prompt`` that begins with token ``first``."""
        drifted = NormalDist().inv_cdf((derive(prompt, version) % 9998 + 1) / 1e4)
        scattered = _DEVIATES[first - FIRST_WORD]
        length = self.means[prompt] * math.exp(self.drift * drifted + self.scatter * scattered)
        return min(max(2, round(length)), self.longest)


def prompt_name(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(bytes(tokens), digest_size=12).hexdigest()


class PacedModel:
    """A workload as a model at a version."""

    def __init__(self, folder: str) -> None:
        self.workload = Workload.read(folder)
        self.version = 0
        self.device = torch.device("cpu")
        text = SimpleNamespace(vocab_size=VOCABULARY, max_position_embeddings=self.workload.context)
        self.config: Any = SimpleNamespace(get_text_config=lambda: text)

    @cached_property
    def table(self) -> Tensor:
        """Logits [V, V] after each token; those of ``EOS`` and the unknown word are never drawn."""
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
        table[:, :FIRST_WORD] = -torch.inf
        return table

    @cached_property
    def first(self) -> Tensor:
        """Logits [V] of a response's first token: all words alike."""
        return torch.zeros(VOCABULARY).index_fill_(0, torch.arange(FIRST_WORD), -torch.inf)

    @cached_property
    def end(self) -> Tensor:
        """Logits [V] of a response's last token."""
        return torch.full((VOCABULARY,), -torch.inf).index_fill_(0, torch.tensor([EOS]), 0.0)

    def after(self, token: int | Tensor) -> Tensor:
        """Logits after a token; those of another version are another row's."""
        return self.table[(token + 7 * self.version) % VOCABULARY]
