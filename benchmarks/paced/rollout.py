"""The rollout function over the engine that pretends."""

from __future__ import annotations

import time

import torch

from benchmarks.paced.engine import PacedEngine
from benchmarks.paced.pace import PACE
from functions.context import Function, FunctionConfig
from functions.rollout.app import Rollout


def create(config: FunctionConfig) -> Function:
    torch.set_num_threads(config.threads)
    time.sleep(PACE.start_s)
    return Rollout(PacedEngine())
