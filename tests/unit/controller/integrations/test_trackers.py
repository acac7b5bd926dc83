"""A tracker that fails, hangs or is missing is told of, and is no concern of the job's."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.fencing import LostLeaseError
from controller.integrations import follower, kinds, trackers
from controller.integrations.kinds import require_installed
from controller.integrations.process import TrackerProcess
from controller.integrations.tracker import Entry, Logged, Mark, RunConfig
from controller.integrations.worker import Answer, Begin, Close, Log
from rlhfless.errors import TransientError, UserError
from simulator.clock import run
from tests.support.trackers import Told, job_spec, step


class Scripted:
    """A process that answers as it is told; ``taken`` outlives it, as a server does."""

    def __init__(self, taken: list[int], answers: list[Any]) -> None:
        self.taken = taken
        self.answers = answers
        self.orders: list[Any] = []

    async def start(self) -> None: ...

    async def ask(self, order: Any, wait_s: float) -> Answer:
        self.orders.append(order)
        if isinstance(order, Begin):
            return Answer(logged=Logged(step=max(self.taken, default=-1)))
        if isinstance(order, Log):
            answer = self.answers.pop(0) if self.answers else Answer()
            if answer == "lost":  # it was taken, and the answer never came
                self.taken.append(order.entry.step)
                raise TransientError("its process has ended")
            if answer == "hangs":
                await asyncio.sleep(1e6)
            if answer.error is None:
                self.taken.append(order.entry.step)
            return answer
        return Answer()

    async def end(self, grace_s: float = 0.0) -> None: ...


DOWN = Answer(error="ConnectionError: refused", kind="ConnectionError")


class Followed:
    def __init__(self, *answers: Any, taken: list[int] | None = None) -> None:
        self.taken = [] if taken is None else taken
        self.answers = list(answers)
        self.processes: list[Scripted] = []
        self.warnings: list[str] = []
        config = RunConfig(job="j", name="n", project="p", folder="f")
        begin = Begin(kind="mlflow", config=config)
        self.follower = follower.Follower("mlflow", begin, self._process, self.warnings.append)

    def _process(self) -> Any:
        self.processes.append(Scripted(self.taken, self.answers))
        return self.processes[-1]

    def add(self, *steps: int) -> None:
        for number in steps:
            self.follower.add(Entry(step=number, evaluation=False, at=0.0, metrics={}))


def test_steps_wait_for_a_server_that_is_down_and_the_cause_is_told_once() -> None:
    async def play() -> None:
        told = Followed(DOWN, DOWN, DOWN)
        task = asyncio.create_task(told.follower.run())
        told.add(1, 2)
        await asyncio.sleep(1000)
        told.add(3)
        await asyncio.sleep(1)
        assert told.taken == [1, 2, 3]
        assert told.warnings == ["mlflow: ConnectionError: refused; the job goes on"]
        told.follower.finish("succeeded")
        await task
        assert told.processes[-1].orders[-1] == Close("succeeded")

    run(play())


def test_a_step_whose_answer_was_lost_is_not_logged_again() -> None:
    async def play() -> None:
        told = Followed("lost")
        task = asyncio.create_task(told.follower.run())
        told.add(1, 2)
        await asyncio.sleep(100)
        assert told.taken == [1, 2]
        assert len(told.processes) == 2
        task.cancel()
        await asyncio.wait({task})

    run(play())


def test_what_a_run_has_already_is_left_out() -> None:
    async def play() -> None:
        told = Followed(taken=[1, 2])
        told.add(1, 2, 3)
        told.follower.finish("paused")
        await told.follower.run()
        assert told.taken == [1, 2, 3]

    run(play())


def test_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "BACKLOG", 3)

    async def play() -> None:
        told = Followed()
        told.add(1, 2, 3, 4, 5)
        told.follower.finish("succeeded")
        await told.follower.run()
        assert told.taken == [3, 4, 5]
        assert told.warnings == [
            "mlflow: more than 3 steps wait; the oldest are dropped; the job goes on"
        ]

    run(play())


def test_the_end_waits_for_a_tracker_that_hangs_but_not_for_long() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        told = Followed("hangs")
        begun_s = loop.time()
        tracked = trackers.Trackers([told.follower], told.warnings.append)
        for number in (1, 2):
            tracked.observe(step(number))
        await asyncio.sleep(5)
        await tracked.close(None)
        assert loop.time() - begun_s <= 5 + follower.CLOSE_S
        assert told.warnings == [
            "waiting for mlflow, 15 s at most",
            "mlflow: 2 steps and evaluations did not get there",
        ]

    run(play())


def test_whoever_lost_the_job_lets_go_at_once() -> None:
    async def play() -> None:
        told = Followed("hangs")
        tracked = trackers.Trackers([told.follower], told.warnings.append)
        tracked.observe(step(1))
        await asyncio.sleep(1)
        begun_s = asyncio.get_running_loop().time()
        await tracked.close(LostLeaseError("another has it"))
        assert asyncio.get_running_loop().time() == begun_s
        assert not any(isinstance(order, Close) for order in told.processes[0].orders)

    run(play())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "succeeded"),
        (asyncio.CancelledError(), "interrupted"),
        (UserError("no"), "failed"),
    ],
)
def test_how_a_run_ended_is_told(error: BaseException | None, status: str) -> None:
    async def play() -> None:
        told = Followed()
        tracked = trackers.Trackers([told.follower], told.warnings.append)
        await tracked.close(error)
        assert told.processes[0].orders[-1] == Close(status)  # type: ignore[arg-type]

    run(play())


def test_a_missing_package_is_told_before_the_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = kinds.Kind("no_such_library", "wandb", "wandb", "Wandb")
    monkeypatch.setitem(kinds.KINDS, "wandb", missing)
    spec = job_spec({"type": "tensorboard"}, {"type": "wandb"})
    with pytest.raises(UserError, match="needs the package no_such_library") as raised:
        require_installed(spec)
    assert raised.value.param == "integrations.1.type"
    assert raised.value.hint == "pip install 'rlhfless[wandb]'"


def test_a_folder_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "offline_runs").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(kinds.KINDS, "wandb", kinds.Kind("offline_runs", "wandb", "wandb", "Wandb"))
    with pytest.raises(UserError, match="not installed"):
        require_installed(job_spec({"type": "wandb"}))


def test_no_libraries_are_loaded_by_the_controller() -> None:
    code = (
        "import sys, controller.integrations.trackers; "
        "print([m for m in ('wandb', 'mlflow', 'trackio', 'tensorboardX') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_strangers_tracker_gets_none_of_our_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "the-operators-own")
    monkeypatch.setenv("RLHFLESS_ADMIN", "secret")
    lent = TrackerProcess(str(tmp_path), None, own_environment=False)._environment()
    assert "the-operators-own" not in json.dumps(lent)
    assert not [name for name in lent if name.startswith(("WANDB", "RLHFLESS"))]
    assert lent["HOME"] == str(tmp_path)
    own = TrackerProcess(str(tmp_path), None, own_environment=True)._environment()
    assert own["WANDB_API_KEY"] == "the-operators-own"


def test_marks_outlive_the_process(tmp_path: Path) -> None:
    mark = Mark(str(tmp_path), "wandb")
    assert mark.load() == Logged()
    mark.add(Entry(step=3, evaluation=False, at=0, metrics={}))
    mark.add(Entry(step=2, evaluation=True, at=0, metrics={}))
    assert Mark(str(tmp_path), "wandb").load() == Logged(3, 2)


def test_warnings_have_no_secrets(tmp_path: Path) -> None:
    spec = job_spec(
        {"type": "mlflow", "url": "http://me:pass-word@127.0.0.1:9", "api_key": "the-api-key"}
    )
    told = Told(spec, tmp_path)

    async def play() -> None:
        async with told.tracking() as tracked:
            tracked._followers[0]._warn("x", "401 for the-api-key at http://me:pass-word@h")
            raise LostLeaseError("enough")

    with pytest.raises(LostLeaseError):
        asyncio.run(play())
    assert "the-api-key" not in told.warnings[0]
    assert "pass-word" not in told.warnings[0]
