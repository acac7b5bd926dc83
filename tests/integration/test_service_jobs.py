"""Jobs of a service of real processes: submitted over HTTP, run, paused, resumed, ended."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rlhfless.errors import ConflictError
from tests.support.runs import STEPS, Workplace
from tests.support.services import assert_whole, cluster, in_state, states, until

pytestmark = pytest.mark.slow


def test_a_submitted_job_runs_and_leaves_what_a_run_leaves(
    place: Workplace, tmp_path: Path
) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        with service.client() as client:
            job = client.jobs.submit(service.spec(training={"checkpoint_every": 2}))
            told = list(client.jobs.events(job))  # until it has ended
            done = client.jobs.get(job)
            assert (done.state, done.error) == ("succeeded", None), done
            assert [e.data["state"] for e in told if e.type == "state"] == [
                "queued",
                "running",
                "succeeded",
            ]
            assert_whole(client, job.id, STEPS)
            assert {e.type for e in told} >= {"state", "step", "evaluated"}
            best = list(itertools.islice(client.jobs.rollouts(job, sort="-reward"), 8))
            assert [one.reward for one in best] == sorted(
                (one.reward for one in best), reverse=True
            )
            checkpoints = list(client.jobs.checkpoints(job))
            assert [one.step for one in checkpoints] == [3, 2]
            assert [one.final for one in checkpoints] == [True, False]
            assert [e.data["reference"] for e in told if e.type == "checkpoint"] == [
                one.reference for one in reversed(checkpoints)
            ]
            folder = client.jobs.download(job, str(tmp_path / "weights"))
            assert (Path(folder) / "model.safetensors").exists()
            # What one job has left, another begins with.
            again = client.jobs.submit(
                service.spec(model={"path": checkpoints[1].reference}, training={"steps": 1})
            )
            assert client.jobs.wait(again).state == "succeeded"
        # And it is all there after a restart.
        service.replicas[0].stop()
        with service.client(service.start()) as client:
            assert client.jobs.get(job).state == "succeeded"
            assert_whole(client, job.id, STEPS)


def test_a_job_is_paused_resumed_and_cancelled(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        with service.client() as client:
            job = client.jobs.submit(service.spec(training={"steps": 12}))
            until(lambda: client.jobs.get(job).progress.steps_done >= 1, "a step is done")
            assert client.jobs.pause(job).state in ("pausing", "paused")
            paused = until(in_state(client, job.id, "paused"), "the job is paused")
            assert 0 < paused.progress.steps_done < 12
            assert paused.reason == "by its owner"
            steps = paused.progress.steps_done
            assert client.jobs.resume(job).state == "queued"
            until(lambda: client.jobs.get(job).progress.steps_done > steps, "it goes on")
            assert client.jobs.cancel(job).state == "cancelled"
            with pytest.raises(ConflictError):
                client.jobs.resume(job)
            told = states(client, job.id)
            assert told == [
                "queued",
                "running",
                "pausing",
                "paused",
                "queued",
                "running",
                "cancelled",
            ]


def test_a_budget_pauses_a_job_until_it_is_raised(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        with service.client() as client:
            job = client.jobs.submit(service.spec(budget={"max_function_seconds": 0.5}))
            paused = client.jobs.wait(job)
            assert paused.state == "paused"
            assert "budget.max_function_seconds is 0.5" in (paused.reason or "")
            assert paused.progress.steps_done <= 1
            client.jobs.resume(job, budget={"max_function_seconds": 10000})
            assert client.jobs.wait(job).state == "succeeded"
            failing = client.jobs.submit(
                service.spec(budget={"max_function_seconds": 0.5, "on_exceed": "fail"})
            )
            failed = client.jobs.wait(failing)
            assert failed.state == "failed"
            assert failed.error is not None
            assert failed.error.param == "budget"


def test_a_job_that_cannot_work_fails_and_says_why(place: Workplace) -> None:
    with cluster(place, own_redis=False) as service:
        service.start()
        (place.folder / "rewards.py").write_text(
            "def letters(prompts, **_):\n    raise KeyError(7)\n"
        )
        with service.client() as client:
            failed = client.jobs.wait(client.jobs.submit(service.spec()))
            assert failed.state == "failed"
            assert failed.error is not None
            assert failed.error.category == "user"
            assert "KeyError" in failed.error.detail
