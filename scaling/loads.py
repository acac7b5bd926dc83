"""What migration is decided from, and what it decides: actors' loads in, moves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Running:
    """A sample that runs or waits on an actor.

    ``remaining``: expected further tokens (``Forecast.remaining``), at least 1. ``late``: further
    tokens should it be the last of all (``Forecast.late``); it decides when everything ends, of
    which expectations tell too little. ``moved_ago_s``: seconds since it was last moved; None:
    never.
    """

    id: str
    group: int
    prompt_tokens: int
    generated: int
    remaining: float
    moved_ago_s: float | None = None
    late: float = 0.0

    @property
    def held_tokens(self) -> float:
        """Tokens of keys and values it will hold in the end."""
        return self.prompt_tokens + self.generated + self.remaining


@dataclass(frozen=True)
class ActorLoad:
    """An actor and its unfinished samples, in order of admission.

    ``rows``: samples it decodes together; ``kv_tokens``: room for keys and values; 0: no bound.
    ``slowdown``: its measured iteration time over the model's. ``ready_s``: seconds until it can
    begin. An actor that does not ``accept`` (it drains, or its call is about to end) is no target.
    """

    name: str
    samples: tuple[Running, ...]
    rows: int = 0
    kv_tokens: int = 0
    slowdown: float = 1.0
    ready_s: float = 0.0
    accept: bool = True


@dataclass(frozen=True)
class MoveRules:
    """``time_weight`` is λ, ``reference`` (T₀, H₀) in seconds, None: what is left before any move.

    ``margin``: least fall of the score, relative to the score before any move, for a change to be
    made (hysteresis: forecasts change with every look, and what gains little would soon be undone).
    ``steer_s``: from the decision until the
    target has the sample. ``load_s``: group -> seconds to load its prompt where that beats
    computing it. ``latest_s``: no change may put the end off beyond this many seconds from now
    (or beyond where it is without any). ``vacate`` and ``rebalance``: the two kinds of change.
    """

    time_weight: float
    reference: tuple[float, float] | None = None
    margin: float = 0.015
    steer_s: float = 0.05
    cooldown_s: float = 10.0
    early_release: bool = True
    load_s: Mapping[int, float] = field(default_factory=dict)
    latest_s: float = float("inf")
    vacate: bool = True
    rebalance: bool = True


@dataclass(frozen=True)
class Move:
    sample: str
    source: str
    target: str


@dataclass(frozen=True)
class Outlook:
    """Predicted seconds until the last actor is done, function-seconds held, and the score."""

    seconds: float
    held_s: float
    score: float


@dataclass(frozen=True)
class MovePlan:
    moves: tuple[Move, ...]
    vacated: tuple[str, ...]
    before: Outlook
    after: Outlook
    reason: str
