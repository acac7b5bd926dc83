"""The real rollout function, slowed down so that a test can reach into a call while it streams.

Every token is streamed at once, and an iteration takes ``ITERATION_S`` longer.
"""

from __future__ import annotations

import time

from functions.context import Function, FunctionConfig
from functions.rollout import app, generation
from functions.rollout.batch import Batch

ITERATION_S = 0.005


class _SlowBatch(Batch):
    def step(self) -> list[int]:
        time.sleep(ITERATION_S)
        return super().step()


def create(config: FunctionConfig) -> Function:
    generation.FLUSH_S = 0.0  # type: ignore[misc]
    generation.Batch = _SlowBatch  # type: ignore[misc]
    return app.create(config)
