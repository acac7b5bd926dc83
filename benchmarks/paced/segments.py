"""Keys and values of prompt prefixes, as bytes that say whose they are: those of a token begin with
the token, and what is found is checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.paced.pace import KV_LAYOUT, Clock, Pace
from functions.rollout.prefixes import Prefixes
from rlhfless.errors import InternalError

Prompt = tuple[Sequence[int], Sequence[int]]
"""Tokens, and where segments of them end."""


class Segments:
    """Prefills prompts, one pass at a time. ``prefixes`` None: nothing is kept or found."""

    def __init__(self, pace: Pace, clock: Clock, prefixes: Prefixes | None) -> None:
        self._pace = pace
        self._clock = clock
        self._prefixes = prefixes
        self.tokens = 0
        """Tokens run so far."""

    def run(self, prompts: Sequence[Prompt], further: int = 0) -> None:
        """Take the time of running what of ``prompts`` is not found, what several of them lack
        once, and ``further`` tokens."""
        prefixes = self._prefixes
        missing: dict[str, Sequence[int]] = {}
        if prefixes is not None and any(cuts for _, cuts in prompts):
            with prefixes.loading():
                missing = self._look_up(prompts, prefixes)
            self._clock.idle()
        tokens = further + sum(map(len, missing.values()))
        for prompt, cuts in prompts:
            tokens += len(prompt) - (cuts[-1] if cuts and prefixes is not None else 0)
        if tokens:
            self._clock.work(self._pace.prefill_s + self._pace.prefill_token_s * tokens)
            self.tokens += tokens
        if prefixes is not None:
            prefixes.add({key: _segment(part) for key, part in missing.items()})
            self._clock.idle()

    def _look_up(self, prompts: Iterable[Prompt], prefixes: Prefixes) -> dict[str, Sequence[int]]:
        """The segments that are not found, or stand on one that is not."""
        parts = [list(_parts(prefixes, prompt)) for prompt in prompts]
        found = prefixes.find({key: len(part) for each in parts for key, part in each})
        missing: dict[str, Sequence[int]] = {}
        for each in parts:
            known = True
            for key, part in each:
                known = known and key in found
                if known:
                    _check(found[key], part)
                else:
                    missing[key] = part
        return missing


def _parts(prefixes: Prefixes, prompt: Prompt) -> Iterator[tuple[str, Sequence[int]]]:
    tokens, cuts = prompt
    keys = prefixes.keys(tokens, cuts)
    for key, (start, end) in zip(keys, pairwise((0, *cuts)), strict=True):
        yield key, tokens[start:end]


def _segment(tokens: Sequence[int]) -> Tensor:
    """[L, 2, H, tokens, D]"""
    data = torch.zeros(KV_LAYOUT.shape(len(tokens)), dtype=torch.float16)
    data[..., 0] = torch.tensor(tokens, dtype=torch.float16)
    return data


def _check(data: Tensor, tokens: Sequence[int]) -> None:
    if data[0, 0, 0, :, 0].tolist() != list(tokens):
        raise InternalError("keys and values of other tokens were found")
