"""What migration is decided from, and what it decides: actors' loads in, moves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scaling.arrays import Bools, Floats, Ints


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


@dataclass(frozen=True, eq=False)
class Loads:
    """``ActorLoad`` s as columns: of ``A`` actors the first, of their ``N`` samples the rest, which
    are as in ``Running``, by actor and then in order of admission. ``actor[N]``: whose they are;
    ``moved_ago_s`` is infinite where it never was."""

    names: Sequence[str]
    rows: Ints
    kv_tokens: Ints
    slowdown: Floats
    ready_s: Floats
    accept: Bools
    actor: Ints
    ids: Sequence[str]
    group: Ints
    prompt_tokens: Ints
    generated: Ints
    remaining: Floats
    late: Floats
    moved_ago_s: Floats

    @classmethod
    def of(cls, actors: Sequence[ActorLoad]) -> Loads:
        samples = [sample for actor in actors for sample in actor.samples]
        ago = [np.inf if s.moved_ago_s is None else s.moved_ago_s for s in samples]
        return cls(
            names=[actor.name for actor in actors],
            rows=np.array([actor.rows for actor in actors], np.int64),
            kv_tokens=np.array([actor.kv_tokens for actor in actors], np.int64),
            slowdown=np.array([actor.slowdown for actor in actors], np.float64),
            ready_s=np.array([actor.ready_s for actor in actors], np.float64),
            accept=np.array([actor.accept for actor in actors], np.bool_),
            actor=np.repeat(np.arange(len(actors)), [len(actor.samples) for actor in actors]),
            ids=[sample.id for sample in samples],
            group=np.array([sample.group for sample in samples], np.int64),
            prompt_tokens=np.array([sample.prompt_tokens for sample in samples], np.int64),
            generated=np.array([sample.generated for sample in samples], np.int64),
            remaining=np.array([sample.remaining for sample in samples], np.float64),
            late=np.array([sample.late for sample in samples], np.float64),
            moved_ago_s=np.array(ago, np.float64),
        )

    def __len__(self) -> int:
        """Actors."""
        return len(self.names)

    def __iter__(self) -> Iterator[ActorLoad]:
        """For people to read."""
        ends = np.searchsorted(self.actor, np.arange(len(self.names) + 1)).tolist()
        for index, name in enumerate(self.names):
            yield ActorLoad(
                name=name,
                samples=tuple(map(self._running, range(ends[index], ends[index + 1]))),
                rows=int(self.rows[index]),
                kv_tokens=int(self.kv_tokens[index]),
                slowdown=float(self.slowdown[index]),
                ready_s=float(self.ready_s[index]),
                accept=bool(self.accept[index]),
            )

    def _running(self, place: int) -> Running:
        ago_s = float(self.moved_ago_s[place])
        return Running(
            id=self.ids[place],
            group=int(self.group[place]),
            prompt_tokens=int(self.prompt_tokens[place]),
            generated=int(self.generated[place]),
            remaining=float(self.remaining[place]),
            moved_ago_s=None if ago_s == np.inf else ago_s,
            late=float(self.late[place]),
        )

    def by_group(self, values: Mapping[int, float]) -> Floats:
        """``[N]``: the value of each sample's group; infinite where there is none."""
        if not values:
            return np.full(len(self.ids), np.inf)
        return np.array([values.get(group, np.inf) for group in self.group.tolist()], np.float64)

    @cached_property
    def context(self) -> Floats:
        """``[N]``: tokens attended to until the sample ends."""
        return (self.prompt_tokens + self.generated + self.remaining / 2) * self.remaining

    @cached_property
    def held_tokens(self) -> Floats:
        """``[N]``: tokens of keys and values it will hold in the end."""
        return self.prompt_tokens + self.generated + self.remaining

    @cached_property
    def last(self) -> Floats:
        """``[N]``: further tokens should it be the last of all."""
        return np.maximum(self.late, self.remaining)


@dataclass(frozen=True)
class MoveRules:
    """``time_weight`` is λ, ``reference`` (T₀, H₀) in seconds, None: what is left before any move.

    ``margin``: least fall of the score, relative to the score before any move, for a change to be
    made (hysteresis: forecasts change with every look, and what gains little would soon be undone).
    It is that of up to ``margin_actors`` actors; of more, a change concerns a smaller share, and
    the margin is smaller in proportion. ``steer_s``: from the decision until the
    target has the sample. ``load_s``: group -> seconds to load its prompt where that beats
    computing it. ``latest_s``: no change may put the end off beyond this many seconds from now;
    where it is later without any, changes must bring it nearer, by the margin. ``vacate`` and
    ``rebalance``: the two kinds of change.
    """

    time_weight: float
    reference: tuple[float, float] | None = None
    margin: float = 0.015
    margin_actors: int = 16
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
