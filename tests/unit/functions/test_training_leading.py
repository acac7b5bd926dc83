"""A leader whose followers fail or hang: the call ends, with the reason, and nobody waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import psutil
import pytest
import torch

from functions.context import FunctionConfig
from functions.ranks import start
from functions.training import leading
from functions.training.app import TrainingFunction
from functions.training.following import follow
from functions.training.group import Group
from functions.training.leading import Leading
from functions.training.objective import Objective
from functions.training.relay import Relay
from functions.training.trainer import Trainer
from functions.weights.tensors import publish
from rlhfless.batches import read_batch
from rlhfless.errors import CapacityError, RlhflessError, TransientError
from rlhfless.messages import Optimization
from rlhfless.versions import versions
from tests.support.group import run_apart
from tests.support.training import SETTINGS, Job

CPU = torch.device("cpu")
COLLECTIVE_S = 3.0


class Led:
    """A group of two in this process and one it forks, which does ``first`` before it follows."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        ranks = start(2, token="t", environment={})
        if not ranks.leads:
            first()
            try:
                follow(ranks, CPU, collective_s=COLLECTIVE_S)
            finally:
                os._exit(0)
        (self.child,) = ranks.children
        self.relay = Relay()
        self.broken: list[RlhflessError] = []
        self.crew = Leading(ranks, CPU, self.broke, lambda: None, collective_s=COLLECTIVE_S)
        self.trainer = Trainer(self.crew)

    def broke(self, error: RlhflessError) -> None:
        self.broken.append(error)
        self.relay.broke(error)

    def train(self, job: Job, parent: int, settings: Optimization = SETTINGS) -> str:
        """The error of a call, or the version it made."""
        job.settings = settings
        try:
            frames = list(
                self.relay.through(self.trainer.train)(job.request(parent), job.context())
            )
        except RlhflessError as error:
            return f"{type(error).__name__}: {error.detail}"
        return str(frames[-1].version)  # type: ignore[attr-defined]


def _hanging(folder: Path, model: Path) -> list[Any]:
    leading.REPORT_S = 2.0
    led, job = Led(), Job(folder, model)
    told = [led.train(job, 0)]
    os.kill(led.child, signal.SIGSTOP)
    told += [led.train(job, 1), led.train(job, 1)]
    led.crew.close()  # a follower that cannot leave is ended
    with pytest.raises(ProcessLookupError):
        os.kill(led.child, 0)
    return [*told, len(led.broken), versions(job.store, job.name)]


def test_a_worker_that_hangs_is_given_up(tmp_path: Path, tiny_model_dir: Path) -> None:
    first, second, third, broken, made = run_apart(_hanging, tmp_path, tiny_model_dir)
    assert first == "1"
    assert second.startswith("TransientError: ")
    assert third == second  # nothing is served any more
    assert (broken, made) == (1, [1])


def _failing_in_the_middle(folder: Path, model: Path, on_leader: bool) -> list[Any]:
    def runs_out() -> None:
        real, calls = Objective.losses, iter(range(100))

        def losses(self: Objective, *arguments: Any, **options: Any) -> Any:
            if next(calls) == 3:
                raise MemoryError("no room for activations")
            return real(self, *arguments, **options)

        Objective.losses = losses  # type: ignore[method-assign]

    led, job = Led((lambda: None) if on_leader else runs_out), Job(folder, model)
    if on_leader:
        runs_out()
    settings = msgspec.structs.replace(SETTINGS, passes=3)
    told = led.train(job, 0, settings)
    return [told, [type(error).__name__ for error in led.broken], versions(job.store, job.name)]


@pytest.mark.parametrize("on_leader", [True, False])
def test_one_that_runs_out_of_memory_in_the_middle_ends_the_call_of_all(
    tmp_path: Path, tiny_model_dir: Path, on_leader: bool
) -> None:
    told, broken, made = run_apart(_failing_in_the_middle, tmp_path, tiny_model_dir, on_leader)
    who = "" if on_leader else "worker 1: "
    assert told.startswith(f"CapacityError: {who}out of memory: no room for activations")
    assert (broken, made) == (["CapacityError"], [])


def _failing_before(folder: Path, model: Path) -> list[Any]:
    def first_batch_is_lost() -> None:
        real, calls = read_batch, iter(range(100))

        def read(*arguments: Any) -> Any:
            if next(calls) == 0:
                raise TransientError("the store hiccupped")
            return real(*arguments)

        mock.patch("functions.training.crew.read_batch", read).start()

    led, job = Led(first_batch_is_lost), Job(folder, model)
    told = [led.train(job, 0), led.train(job, 0)]
    led.crew.close()
    return [*told, len(led.broken)]


def test_one_that_cannot_begin_stops_the_others_before_they_do(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    first, second, broken = run_apart(_failing_before, tmp_path, tiny_model_dir)
    assert first == "TransientError: worker 1: the store hiccupped"
    assert (second, broken) == ("1", 0)


def _failing_to_publish(folder: Path, model: Path) -> list[Any]:
    real, calls = publish, iter(range(100))

    def failing(store: Any, job: str, parent: int, tensors: Any, **options: Any) -> Any:
        if next(calls) == 0:
            assert len(dict(tensors)) > 1
            raise CapacityError("no space left")
        return real(store, job, parent, tensors, **options)

    mock.patch("functions.training.trainer.publish", failing).start()
    led, job = Led(), Job(folder, model)
    told = [led.train(job, 0), led.train(job, 0)]
    led.crew.close()
    return [*told, len(led.broken)]


def test_a_version_that_cannot_be_stored_leaves_the_group_whole(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    first, second, broken = run_apart(_failing_to_publish, tmp_path, tiny_model_dir)
    assert (first, second, broken) == ("CapacityError: no space left", "1", 0)


def _dead_before() -> str:
    try:
        Led(lambda: os._exit(3))
    except TransientError as error:
        return error.detail
    return "whole"


def test_one_that_ends_before_the_group_is_whole_is_told() -> None:
    told = run_apart(_dead_before)
    assert told.startswith("worker 1 ended before the group was whole: pid ")
    assert told.endswith("left with code 3")


def _dead_while_meeting(folder: Path) -> int:
    if (pid := os.fork()) == 0:
        ranks = start(2, token="t", environment={})
        if not ranks.leads:
            mock.patch.object(Group, "meet", lambda *_: os._exit(3)).start()
            follow(ranks, CPU)
        TrainingFunction(FunctionConfig(workdir=str(folder), workers=2, ranks=ranks))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_leader_does_not_wait_for_one_that_ends_while_they_meet(tmp_path: Path) -> None:
    """Nor does it count on a signal to itself, to which a container's first process is deaf."""
    assert run_apart(_dead_while_meeting, tmp_path) == 1


def _listening() -> tuple[str, list[str]]:
    """Where gloo is told to listen, and all addresses at which the leader and its follower do."""
    del os.environ["GLOO_SOCKET_IFNAME"]
    led = Led()
    found = [
        connection.laddr.ip
        for pid in (os.getpid(), led.child)
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    led.crew.close()
    return os.environ["GLOO_SOCKET_IFNAME"], found


def test_a_group_of_one_machine_is_reached_from_there_alone() -> None:
    told, found = run_apart(_listening)
    assert told in ("lo", "lo0")
    assert len(found) > 1 and {ip.removeprefix("::ffff:") for ip in found} == {"127.0.0.1"}
