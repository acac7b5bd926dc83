"""A training process killed at any moment leaves whole versions, and another goes on from them."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from functions.weights.tensors import pull
from rlhfless.versions import latest_version
from tests.support.training import PPO, Job, make_batch, new_trainer

pytestmark = pytest.mark.slow
CALLS = 5


def run(folder: Path, model: Path) -> None:
    """Train to version ``CALLS`` from wherever the store stands."""
    job = Job(folder, model, algorithm=PPO)
    trainer = new_trainer()
    for parent in range(latest_version(job.store, job.name), CALLS):
        batch = make_batch(parent, groups=16, longest=40)
        job.train(trainer, job.request(parent, batch=batch, checkpoint=parent == 1))


def test_kill_minus_nine_loses_nothing(tmp_path: Path, tiny_model_dir: Path) -> None:
    run(tmp_path / "steady", tiny_model_dir)
    killed = Job(tmp_path / "killed", tiny_model_dir, algorithm=PPO)
    context = mp.get_context("spawn")
    kills = 0
    for delay_s in (0.05, 0.2, 0.35, 0.5):
        process = context.Process(target=run, args=(tmp_path / "killed", tiny_model_dir))
        process.start()
        before = latest_version(killed.store, killed.name)
        while process.is_alive() and latest_version(killed.store, killed.name) == before:
            time.sleep(0.01)  # it has started up and committed once more
        time.sleep(delay_s)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if latest_version(killed.store, killed.name) == CALLS:
            break
    assert kills > 0
    run(tmp_path / "killed", tiny_model_dir)
    steady = Job(tmp_path / "steady", tiny_model_dir)
    for version in range(1, CALLS + 1):
        expected = pull(steady.store, steady.name, version)[1]
        found = pull(killed.store, killed.name, version)[1]
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
