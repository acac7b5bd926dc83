"""Rewards kept loaded between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from functions.context import FunctionConfig
from functions.reward.python_scorer import PythonScorer
from functions.reward.scorer import Scorer
from rlhfless.messages import RewardFunction

MAX_IDLE = 16


class _Entry:
    """``scorer`` is made by the first user, under ``making``; ``users`` counts those using it."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.scorer: Scorer | None = None
        self.users = 0


class ScorerCache:
    """Scorers by reward. Of those not in use the ``max_idle`` used last are kept."""

    def __init__(self, config: FunctionConfig, max_idle: int = MAX_IDLE) -> None:
        self._config = config
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._entries: dict[RewardFunction, _Entry] = {}  # in order of last use

    @contextmanager
    def use(self, function: RewardFunction) -> Iterator[Scorer]:
        """The scorer of a reward, loaded if need be; errors of loading are the caller's."""
        key = msgspec.structs.replace(function, weight=1.0)
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            entry.users += 1
        try:
            with entry.making:
                if entry.scorer is None:
                    entry.scorer = make_scorer(key, self._config)
            yield entry.scorer
        finally:
            for surplus in self._release(entry):
                surplus.close()

    def close(self) -> None:
        """Call when no scorer is in use."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.scorer is not None:
                entry.scorer.close()

    def _release(self, entry: _Entry) -> list[Scorer]:
        with self._lock:
            entry.users -= 1
            idle = [key for key, e in self._entries.items() if e.users == 0]
            gone = [self._entries.pop(key) for key in idle[: max(0, len(idle) - self._max_idle)]]
        return [e.scorer for e in gone if e.scorer is not None]


def make_scorer(function: RewardFunction, config: FunctionConfig) -> Scorer:
    """Imports what the kind needs, and no more."""
    match function.kind:
        case "python":
            return PythonScorer(function)
        case "http":
            from functions.reward.http_scorer import HttpScorer

            return HttpScorer(function)
        case "model":
            from functions.reward.model_scorer import ModelScorer

            return ModelScorer(function, config.accelerator, config.threads)
