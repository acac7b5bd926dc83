"""A job's events as trackers get them, and the tracking of a job that is only told."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from controller.evaluation import Evaluation
from controller.integrations.trackers import Place, Trackers, tracking
from controller.job import Event
from rlhfless.spec import JobSpec
from rlhfless.spec_file import parse_spec

JOB = "quick-start-0123abcd"


def job_spec(*integrations: dict[str, Any], **more: Any) -> JobSpec:
    raw: dict[str, Any] = {
        "name": "quick-start",
        "model": {"path": "org/model"},
        "dataset": {"path": "org/data"},
        "rewards": [{"python": "rewards.exact:f"}],
        "integrations": list(integrations),
    }
    return parse_spec({**raw, **more})


def metrics(step: int) -> dict[str, float]:
    return {"step": step, "reward/mean": step / 10, "reward/h:8000+x": 1.0}


def step(number: int) -> Event:
    return Event("step", "", {"metrics": metrics(number)})


def restored(number: int) -> Event:
    return Event("restored", "", {"metrics": metrics(number)})


def evaluated(steps: int) -> Event:
    found = Evaluation(steps, accuracy=steps / 100, reward_mean=0.5, length_mean=7.0, samples=[])
    return Event("evaluated", "", {"step": steps, "evaluation": found})


class Told:
    """A job in ``folder`` whose runs are told, one after another. ``warnings``: of all its
    runs, without those that something is waited for."""

    def __init__(self, spec: JobSpec, folder: Path) -> None:
        self.spec = spec
        self.place = Place(folder=str(folder), logs=str(folder / "logs"), trusted=True)
        self.warnings: list[str] = []

    def tracking(self) -> AbstractAsyncContextManager[Trackers]:
        return tracking(self.spec, JOB, self.place, self._warn)

    def _warn(self, text: str) -> None:
        if not text.startswith("waiting for "):
            self.warnings.append(text)

    def run(self, *events: Event, ends: str | None = None) -> None:
        """One run of the job, to its end."""

        async def tell() -> None:
            async with self.tracking() as trackers:
                for event in events:
                    trackers.observe(event)
                if ends is not None:
                    trackers.ended(ends)  # type: ignore[arg-type]

        asyncio.run(tell())


async def until(true: Callable[[], bool]) -> None:
    """Waits for what other processes do."""
    while not true():  # noqa: ASYNC110  (they cannot set an event)
        await asyncio.sleep(0.05)


def kill_children(command: str = "controller.integrations.worker") -> Sequence[int]:
    """Kill the trackers' processes that this one has started."""
    killed = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and command in (path / "cmdline").read_text():
                os.kill(int(path.name), signal.SIGKILL)
                killed.append(int(path.name))
        except (OSError, IndexError):
            continue
    return killed
