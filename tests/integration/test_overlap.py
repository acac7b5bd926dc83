"""Jobs with ``training.overlap``: the same samples and, up to rounding, the same weights."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from tests.support.processes import wait_until_gone
from tests.support.runs import STEPS, Result, Workplace, wait_for

pytestmark = pytest.mark.slow

SHARE = "training/overlapped_share"


def workplace(folder: Path, model: Path, *, overlap: bool, minibatches: int = 1) -> Workplace:
    place = Workplace(folder, model)
    place.change_job(
        evaluation=None,
        training={"overlap": overlap, "minibatches": minibatches, "epsilon": 1e-4},
        reward={"max_instances": 2},
        rollout={"max_instances": 1},
    )
    return place


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Result:
    folder = tmp_path_factory.mktemp("plain")
    with workplace(folder, tiny_model_dir, overlap=False) as place:
        ended = place.start_job().ended()
        assert ended.code == 0, ended.explained()
    return place.result()


def assert_alike(result: Result, expected: Result) -> None:
    assert result.summary["status"] == "succeeded"
    assert [m.version for m in result.manifests()] == list(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        assert result.samples(step) == expected.samples(step)
    for one, other in zip(result.metrics, expected.metrics, strict=True):
        for name in ("policy/loss", "policy/grad_norm", "policy/entropy", "reward/mean"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    weights, others = load(result.weights), load(expected.weights)
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        np.testing.assert_allclose(tensor, others[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_overlaps_ends_as_one_that_does_not(
    tmp_path: Path, tiny_model_dir: Path, plain: Result, killed: bool
) -> None:
    """In every step one reward call is held up until training has begun with other groups; where
    ``killed``, the training instance then dies with what it holds."""
    with workplace(tmp_path, tiny_model_dir, overlap=True) as place:
        for step in range(STEPS):
            place.gate(f"tail-{step}", f"step-{step:06d}/reward/*")
        running = place.start_job(gated=True)
        for step in range(STEPS):
            place.reached(f"tail-{step}", running)
            call = f"step-{step:06d}/training/gradients-"
            wait_for(partial(place.calls, call), f"{call}\n{running.so_far().explained()}", 60)
            if killed:
                pids = place.instances("training")
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                wait_until_gone(pids)
            place.open(f"tail-{step}")
        ended = running.ended()
        assert ended.code == 0, ended.explained()
        assert_alike(place.result(), plain)
        shares = [metrics[SHARE] for metrics in place.result().metrics]
        assert all(0 <= share < 1 for share in shares)
        assert killed or all(shares)
        place.assert_nothing_left()
