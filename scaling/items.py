"""The samples of a step as columns, and who generates which: what plans are made and judged from.

Shapes: ``N`` samples, ``D`` distinct groups, ``F`` distinct forecasts, ``J`` points of the grid of
``scaling.tails``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from scaling.arrays import Floats, Ints
from scaling.forecast_table import NEVER, ForecastTable
from scaling.forecasts import Forecast


@dataclass(frozen=True)
class Item:
    """A sample to place: its prompt's number and its predicted length in tokens.

    ``prompt_tokens`` long is its prompt; ``generated`` tokens of the response exist already.
    ``forecast`` None: ``tokens`` is certain.
    """

    id: str
    group: int
    tokens: float
    prompt_tokens: int = 0
    generated: int = 0
    forecast: Forecast | None = None

    @property
    def remaining(self) -> float:
        """Tokens still to generate."""
        return max(1.0, self.tokens - self.generated)


@dataclass(frozen=True, eq=False)
class Items:
    """``remaining``, ``prompt_tokens`` and ``generated`` ``[N]``. ``group[N]`` are places in
    ``groups``, which holds the numbers that ``Item.group`` has. ``forecast[N]``: the row of
    ``log_within[F, J]`` and ``most[F]`` (the longest it may be) of samples not begun; -1 of others,
    whose length is taken as it is."""

    ids: tuple[str, ...]
    remaining: Floats
    prompt_tokens: Floats
    generated: Floats
    group: Ints
    groups: Ints
    forecast: Ints
    log_within: Floats
    most: Floats

    @classmethod
    def of(cls, items: Sequence[Item]) -> Items:
        generated = np.array([item.generated for item in items], np.float64)
        groups, group = np.unique([item.group for item in items], return_inverse=True)
        # Samples of a group share their forecast: told apart by identity, since hashing is slow.
        rows: dict[int, int] = {}
        distinct: list[Forecast] = []
        forecast = []
        for item in items:
            known = item.forecast
            if known is None or item.generated:
                forecast.append(-1)
                continue
            row = rows.setdefault(id(known), len(distinct))
            if row == len(distinct):
                distinct.append(known)
            forecast.append(row)
        table = ForecastTable.of(distinct)
        return cls(
            ids=tuple(item.id for item in items),
            remaining=np.maximum(1.0, np.array([item.tokens for item in items]) - generated),
            prompt_tokens=np.array([item.prompt_tokens for item in items], np.float64),
            generated=generated,
            group=group.astype(np.int64),
            groups=groups.astype(np.int64),
            forecast=np.array(forecast, np.int64),
            log_within=table.log_within(),
            most=table.support.max(axis=1),
        )

    @classmethod
    def fresh(
        cls,
        ids: Sequence[str],
        group: Sequence[int],
        forecasts: Sequence[Forecast],
        prompt_tokens: Sequence[int],
    ) -> Items:
        """Samples not begun: ``group`` of each; ``forecasts`` and ``prompt_tokens`` by group."""
        groups, place = np.unique(np.array(group, np.int64), return_inverse=True)
        used = [forecasts[label] for label in groups.tolist()]
        table = ForecastTable.of(used)
        sizes = np.array([prompt_tokens[label] for label in groups.tolist()], np.float64)
        return cls(
            ids=tuple(ids),
            remaining=np.maximum(1.0, table.mean)[place],
            prompt_tokens=sizes[place],
            generated=np.zeros(len(place)),
            group=place,
            groups=groups,
            forecast=place,
            log_within=table.log_within(),
            most=table.support.max(axis=1),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def context(self) -> Floats:
        """``[N]``: tokens attended to until the sample ends."""
        before = self.prompt_tokens + self.generated
        return before * self.remaining + self.remaining**2 / 2

    @cached_property
    def least_columns(self) -> int:
        """Points of the grid within which no sample ends."""
        return int((self.log_within <= NEVER).all(axis=0).sum()) if len(self.most) else 0

    @cached_property
    def longest_first(self) -> Ints:
        """``[N]``: places by remaining tokens, samples of a group together."""
        return np.lexsort((self.group, -self.remaining))

    @cached_property
    def group_tokens(self) -> Floats:
        """``[D]``: tokens of each group's prompt."""
        tokens = np.zeros(len(self.groups))
        tokens[self.group] = self.prompt_tokens
        return tokens


@dataclass(frozen=True, eq=False)
class Dealing:
    """Every sample's actor: ``owner[i]`` generates sample ``order[i]``, and admits its samples in
    this order. Actors are numbered from 0, and none is without a sample."""

    order: Ints
    owner: Ints
    num_actors: int

    def by_actor(self) -> list[Ints]:
        """Samples of each actor, in order."""
        rank = np.argsort(self.owner, kind="stable")
        ends = np.cumsum(np.bincount(self.owner, minlength=self.num_actors))
        return np.split(self.order[rank], ends[:-1])


class Shares(Sequence[tuple[str, ...]]):
    """The ids of each actor's samples, put together when they are asked for: of most plans nobody
    asks."""

    def __init__(self, items: Items, dealing: Dealing) -> None:
        self._items = items
        self._dealing = dealing

    def __len__(self) -> int:
        return self._dealing.num_actors

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[str, ...], ...]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        return self._ids[index]

    @cached_property
    def _ids(self) -> tuple[tuple[str, ...], ...]:
        ids = self._items.ids
        parts = self._dealing.by_actor()
        return tuple(tuple(ids[place] for place in part.tolist()) for part in parts)
