"""What a rollout call asks of vLLM and what it hears, without vLLM: the seam between ``generation``
and ``runtime``."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from functions.rollout.vllm_engine.stats import EngineStats
from rlhfless.errors import RlhflessError
from rlhfless.messages import SamplingParams

End: TypeAlias = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Adapter:
    """A LoRA version in a folder, as peft writes it. ``id`` is unique over the engine's life."""

    name: str
    id: int
    folder: str


@dataclass(frozen=True)
class Manner:
    """How all samples of a call are generated. ``salt``: keeps their keys and values apart from
    those of other weights. ``epoch``: of the weights that they are asked of (``Runtime.epoch``).
    """

    sampling: SamplingParams
    stop_token_ids: Sequence[int]
    salt: str
    epoch: int
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Generate:
    """One sample to generate. ``id`` is unique over the engine's life; ``key`` is the asker's.
    ``tokens``: the prompt and what there is of the response. ``transfer``: for the KV connector.
    """

    id: str
    key: int
    tokens: Sequence[int]
    max_tokens: int
    seed: int
    transfer: dict[str, Any] | None = None


@dataclass(frozen=True)
class Delta:
    """What a generation has gained. ``end``: why it is over, None while it goes on; ``error``: it
    has failed. ``cached``: prompt tokens that were not run; told by the first delta."""

    key: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    cached: int = 0
    end: End | None = None
    error: RlhflessError | None = None


Deltas = queue.SimpleQueue[Delta]


class Asked(Protocol):
    """What answers: ``runtime.Runtime``."""

    stats: EngineStats

    @property
    def dead(self) -> bool: ...

    def generate(self, requests: Sequence[Generate], manner: Manner, deltas: Deltas) -> None:
        """Begin. Each request has, whatever happens, exactly one delta with ``end`` or ``error``,
        its last; ``abort`` at once if other weights than the manner's are served by now."""
        ...

    def abort(self, ids: Sequence[str]) -> None:
        """End generations: when this returns, their last deltas are in the queue. Those that were
        over just before stay as they ended. Never raises."""
        ...
