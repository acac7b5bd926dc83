"""What functions answer in a fuzzed job: each answer a function of what it is about.

A token says of which sample and position it is, a log-prob also by which policy version, a reward
of which response to which prompt, so whatever is lost, doubled or mixed up shows in the batch that
is trained on. All numbers are exact in float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rlhfless.messages import Prompt, RewardDone, RewardRequest
from simulator.random_numbers import hashed

_TOKENS = 50_000
_PER_UNIT = 256
_TOKEN, _REFERENCE = 1, 2
"""Keys that keep hashes apart."""

Floats = NDArray[np.float32]


def tokens(sample_seed: int, start: int, count: int) -> list[int]:
    """Of the response of the sample with this seed."""
    return _made(sample_seed, _size(start + count))[0][start : start + count]


def logprobs(sample_seed: int, version: int, start: int, count: int) -> bytes:
    """Float32 LE, as ``version`` gives them."""
    fractions = _made(sample_seed, _size(start + count))[1]
    part = fractions[start : start + count] - np.float32(1 + version)
    data: bytes = part.astype("<f4").tobytes()
    return data


def reference(prompt: Sequence[int], response: Sequence[int]) -> Floats:
    """Log-probs of the initial model."""
    key = _key("reference", tuple(prompt), tuple(response))
    noise = hashed(key, _REFERENCE, np.arange(len(response), dtype=np.uint64))
    values: Floats = (noise % np.uint64(_PER_UNIT)).astype(np.float32)
    return -values / np.float32(_PER_UNIT)


def score(function: str, prompt: Prompt, response: Sequence[int]) -> float | None:
    """Of one reward function: now and then it does not apply."""
    return _score(function, repr(prompt), tuple(response))


def total(weights: Sequence[float], scores: Sequence[float | None]) -> float:
    """As the reward function sums them."""
    return float(sum(w * s for w, s in zip(weights, scores, strict=True) if s is not None))


def rewards(request: RewardRequest) -> RewardDone:
    scores = [
        [
            score(function.name, prompt, ids)
            for prompt, ids in zip(request.prompts, request.completion_ids, strict=True)
        ]
        for function in request.functions
    ]
    weights = [function.weight for function in request.functions]
    return RewardDone(
        scores=scores, totals=[total(weights, column) for column in zip(*scores, strict=True)]
    )


def _size(count: int) -> int:
    """Sizes are few, so that what was made is found again."""
    return 1 << max(6, (count - 1).bit_length())


@lru_cache(maxsize=4096)
def _score(function: str, prompt: str, response: tuple[int, ...]) -> float | None:
    key = _key("score", function, prompt, response)
    return None if key % 7 == 0 else (key // 7 % 33 - 16) / 8


@lru_cache(maxsize=4096)
def _made(sample_seed: int, count: int) -> tuple[list[int], Floats]:
    """Tokens, and numbers in (-1, 0]."""
    noise = hashed(sample_seed, _TOKEN, np.arange(count, dtype=np.uint64))
    rest, token = np.divmod(noise, np.uint64(_TOKENS))
    fractions = (rest % np.uint64(_PER_UNIT)).astype(np.float32) / np.float32(-_PER_UNIT)
    return (token + np.uint64(3)).tolist(), fractions


def _key(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")
