"""What the decode loop asks of a model: rows that come, advance by a token each, and go.

Two implementations: ``llama_decoder`` (a lean path for the Llama family) and ``hf_decoder`` (any
causal LM through its own forward). Rows are numbered 0 .. num_rows - 1 without holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class NewRow:
    """A sample to decode: ``prompt`` names its prompt, rows of one name share it.

    ``tokens`` are those of the response that exist already. ``cuts``: as in ``messages.PrefixUse``;
    a decoder that keeps no prefixes ignores them.
    """

    prompt: int
    prompt_tokens: Sequence[int]
    tokens: Sequence[int] = ()
    cuts: Sequence[int] = ()


class Decoder(Protocol):
    """State of one batch. Logits [rows, vocabulary] may be overwritten by the caller."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens run through the model to admit rows, so far."""
        ...

    @property
    def num_rows(self) -> int: ...

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values are held."""
        ...

    def admit(self, rows: Sequence[NewRow]) -> Tensor:
        """Append rows; the logits of each one's next token. A known prompt is not run again."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed every row its newest token [num_rows]; the logits of the next ones."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """Remove rows; the others move as ``compaction`` says."""
        ...

    def forget(self, prompt: int) -> None:
        """No further row of this prompt will come: free what is kept for it alone."""
        ...


def compaction(num_rows: int, dropped: Sequence[int]) -> list[tuple[int, int]]:
    """Moves (source, target) that close the holes of ``dropped``: the last rows fill them.

    Few rows move, and each only once, however many go.
    """
    gone = set(dropped)
    remaining = num_rows - len(gone)
    sources = (row for row in range(remaining, num_rows) if row not in gone)
    return list(zip(sources, sorted(row for row in gone if row < remaining), strict=True))
