"""What can be asked before a job is submitted: models, estimates, reward checks."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from controller.reward_check import CheckedRow, RewardCheck
from controller.service import hub
from controller.service.routes import rewards as module
from controller.service.service import Service
from rlhfless import rest
from rlhfless.checkpoints import Checkpoint, CheckpointFile, checkpoint_prefix, commit_checkpoint
from rlhfless.errors import TransientError, UserError
from rlhfless.spec import JobSpec
from tests.support.api import Api, refused, with_api

JOB: dict[str, Any] = {
    "model": {"path": "library:m"},
    "dataset": {"path": "library:rows.jsonl"},
    "rewards": [{"python": "library:rewards.py:f"}, {"http": "http://reward/", "name": "far"}],
}


@pytest.fixture
def library(tmp_path: Path) -> dict[str, Any]:
    """Settings of a service with a library."""
    folder = tmp_path / "library"
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "config.json").write_text("{}")
    (folder / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "rewards.py").write_text("def f(): ...")
    return {"library": str(folder), "allowed_urls": ("http://reward",)}


def test_models_of_the_library_of_files_and_of_jobs(
    tmp_path: Path, library: dict[str, Any]
) -> None:
    async def test(api: Api) -> None:
        user, other = await api.user("acme"), await api.user("rival")
        form = {"files": {"file": ("m.tar", b"x")}, "data": {"purpose": "model"}}
        file = (await user.post("/v1/files", **form)).json()
        form["data"] = {"purpose": "dataset"}
        await user.post("/v1/files", **form)
        jobs = [await api.parts.registry.create("acme", {"name": f"j{i}"}) for i in range(3)]
        for job, steps in zip(jobs, ((5, 10), (), (7,)), strict=True):
            for step in steps:
                told = Checkpoint(
                    step=step,
                    version=step,
                    created_at=float(step),
                    files=[CheckpointFile(name="config.json", size=2, sha256="")],
                )
                assert commit_checkpoint(api.parts.objects, checkpoint_prefix(job.id, step), told)
        found = (await user.get("/v1/models")).json()
        assert not found["has_more"]
        listed = [(model["source"], model["path"]) for model in found["data"]]
        assert listed == [
            ("library", "library:m"),
            ("file", file["id"]),
            ("checkpoint", f"checkpoint:{jobs[2].id}/7"),
            ("checkpoint", f"checkpoint:{jobs[0].id}/10"),
        ]
        seen: list[Any] = []
        more = True
        while more:
            after = {"after": seen[-1]["id"]} if seen else {}
            page = (await user.get("/v1/models", params={"limit": 1} | after)).json()
            seen += page["data"]
            more = page["has_more"]
        assert seen == found["data"]
        theirs = (await other.get("/v1/models")).json()["data"]
        assert [model["path"] for model in theirs] == ["library:m"]
        refused(await user.get("/v1/models", params={"after": "x"}), 404)

    with_api(tmp_path, test, **library)


class Estimator:
    """Notes what it was asked; waits for ``going``."""

    def __init__(self) -> None:
        self.asked: list[tuple[JobSpec, str | None]] = []
        self.began = threading.Semaphore(0)
        self.going = threading.Event()
        self.going.set()

    def __call__(self, spec: JobSpec, cluster: str | None) -> rest.Estimate:
        self.asked.append((spec, cluster))
        self.began.release()
        assert self.going.wait(60)
        if cluster == "none":
            raise UserError("there is no cluster 'none'", param="cluster")
        return rest.Estimate(
            cluster=cluster or "usual",
            total_steps=3,
            step_s=1.0,
            wall_s=3.0,
            held_s=6.0,
            functions={},
            assumptions=[f"there is no dataset {spec.dataset.path} here"],
        )


def with_estimator(api: Api) -> Estimator:
    api.parts.estimator = Estimator()
    return api.parts.estimator


def test_an_estimate_is_of_the_job_with_its_inputs(
    tmp_path: Path, library: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "cached_model", lambda _: None)

    async def test(api: Api) -> None:
        estimator = with_estimator(api)
        user = await api.user()
        found = await user.post("/v1/estimates", json=JOB, params={"cluster": "h100-8"})
        assert found.status_code == 200, found.text
        estimate = found.json()
        assert (estimate["cluster"], estimate["wall_s"], estimate["usd"]) == ("h100-8", 3.0, None)
        assert estimate["assumptions"] == ["there is no dataset library:rows.jsonl here"]
        spec, cluster = estimator.asked[0]
        assert spec.dataset.path == f"{library['library']}/rows.jsonl"
        assert cluster == "h100-8"
        # What is on the Hub is not downloaded for it.
        named = JOB | {"dataset": {"path": "org/data"}, "model": {"path": "org/m"}}
        assert (await user.post("/v1/estimates", json=named)).status_code == 200
        spec, cluster = estimator.asked[1]
        assert (spec.model.path, spec.dataset.path, cluster) == ("org/m", "org/data", None)
        again = {"Idempotency-Key": "k"}
        for _ in range(2):
            await user.post("/v1/estimates", json=JOB, headers=again)
        assert len(estimator.asked) == 3
        other = await user.post(
            "/v1/estimates", json=JOB, headers=again, params={"cluster": "h100-8"}
        )
        refused(other, 409)

    with_api(tmp_path, test, **library)


def test_what_cannot_be_estimated_is_refused(tmp_path: Path, library: dict[str, Any]) -> None:
    async def test(api: Api) -> None:
        estimator = with_estimator(api)
        user = await api.user()
        for change, param in (
            ({"dataset": {"path": "/etc/passwd"}}, "dataset.path"),
            ({"rewards": [{"http": "http://127.0.0.1/"}]}, "rewards.0.http"),
            ({"modle": 1}, "modle"),
        ):
            problem = refused(await user.post("/v1/estimates", json=JOB | change), 422)
            assert problem["param"] == param
        assert estimator.asked == []
        unknown = await user.post("/v1/estimates", json=JOB, params={"cluster": "none"})
        assert refused(unknown, 422)["param"] == "cluster"
        api.parts.estimator = None
        refused(await user.post("/v1/estimates", json=JOB), 404)

    with_api(tmp_path, test, **library)


def test_as_many_estimates_as_may_be_even_if_nobody_waits_for_them(
    tmp_path: Path, library: dict[str, Any]
) -> None:
    async def test(api: Api) -> None:
        estimator = with_estimator(api)
        estimator.going.clear()
        user = await api.user()
        tasks = [asyncio.create_task(user.post("/v1/estimates", json=JOB)) for _ in range(2)]
        for _ in tasks:
            await asyncio.to_thread(estimator.began.acquire)
        assert refused(await user.post("/v1/estimates", json=JOB), 503)["category"] == "capacity"
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        refused(await user.post("/v1/estimates", json=JOB), 503)
        assert (await user.get("/v1/models")).status_code == 200  # nothing else is held up
        estimator.going.set()
        await asyncio.wait(tasks)
        assert (await user.post("/v1/estimates", json=JOB)).status_code == 200

    with_api(tmp_path, test, **library)


def test_rewards_are_tried(
    tmp_path: Path, library: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def check(spec: JobSpec, rows: int, completion: str | None) -> RewardCheck:
        asked.append((spec.rewards[0].python, rows, completion))
        return RewardCheck([CheckedRow("a", "b", [1.0, None], 1.0)], 0.5)

    monkeypatch.setattr(module, "check_rewards", check)

    async def test(api: Api) -> None:
        user = await api.user()
        body = {"job": JOB, "rows": 3, "completion": "b"}
        found = await user.post("/v1/rewards/check", json=body)
        assert found.status_code == 200, found.text
        assert found.json() == {
            "object": "rlhf.reward_check",
            "data": [
                {
                    "prompt": "a",
                    "completion": "b",
                    "reward": 1.0,
                    "rewards": {"f": 1.0, "far": None},
                }
            ],
            "seconds": 0.5,
        }
        assert asked == [(f"{library['library']}/rewards.py:f", 3, "b")]
        await user.post("/v1/rewards/check", json={"job": JOB})
        assert asked[1][1:] == (4, None)
        for wrong, param in (
            ({}, "job"),
            ({"job": JOB, "rows": 0}, "rows"),
            ({"job": JOB, "rows": 33}, "rows"),
            ({"job": JOB, "more": 1}, "more"),
            ({"job": JOB | {"seed": "x"}}, "job.seed"),
            ({"job": JOB | {"dataset": {"path": "/etc/passwd"}}}, "job.dataset.path"),
        ):
            problem = refused(await user.post("/v1/rewards/check", json=wrong), 422)
            assert problem["param"] == param
        assert len(asked) == 2

    with_api(tmp_path, test, **library)


def test_a_reward_that_raises_is_told_with_its_trace_and_no_paths_of_ours(
    tmp_path: Path, library: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(spec: JobSpec, rows: int, completion: str | None) -> RewardCheck:
        place = str(spec.rewards[0].python).removesuffix(":f")
        trace = "Traceback (most recent call last):\n" + "".join(
            f'  File "{path}", line 3, in f\n    x\n' for path in (place, "/venv/lib/numpy/x.py")
        )
        error = UserError(
            f"reward 'f' raised ValueError: no ({place}:3)",
            param="rewards.0",
            hint=f"look at {place}",
            trace=trace + "ValueError: no\n",
        )
        raise error

    monkeypatch.setattr(module, "check_rewards", check)

    async def test(api: Api) -> None:
        user = await api.user()
        form = {"files": {"file": ("mine.py", b"def f(): ...")}, "data": {"purpose": "reward"}}
        code = (await user.post("/v1/files", **form)).json()["id"]
        job = JOB | {"rewards": [{"python": f"{code}:f"}]}
        problem = refused(await user.post("/v1/rewards/check", json={"job": job}), 422)
        assert problem["param"] == "job.rewards.0"
        assert problem["detail"].startswith("reward 'f' raised ValueError: no (mine.py:3)\n")
        assert 'File "mine.py", line 3' in problem["detail"]
        assert problem["hint"] == "look at mine.py"
        assert "/" not in problem["detail"].replace(".../x.py", "")
        assert str(tmp_path) not in json.dumps(problem)

    with_api(tmp_path, test, **library)


def test_a_check_ends_in_time_and_few_go_on_at_once(
    tmp_path: Path, library: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = asyncio.Event()

    async def check(spec: JobSpec, rows: int, completion: str | None) -> RewardCheck:
        inside.set()
        if rows == 1:
            raise TransientError("the endpoint is away")
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "check_rewards", check)
    monkeypatch.setattr(module, "MAX_CHECKS", 1)
    monkeypatch.setattr(module, "CHECK_S", 0.2)

    async def test(api: Api) -> None:
        user = await api.user()
        path = "/v1/rewards/check"
        first = asyncio.create_task(user.post(path, json={"job": JOB, "rows": 2}))
        await inside.wait()
        refused(await user.post(path, json={"job": JOB}), 503)
        assert "longer than" in refused(await first, 422)["detail"]
        away = refused(await user.post(path, json={"job": JOB, "rows": 1}), 503)
        assert away["category"] == "transient"

    with_api(tmp_path, test, **library)


def test_a_service_is_made_with_its_estimator(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        estimator = Estimator()
        assert Service(api.redis, api.settings, estimator).estimator is estimator

    with_api(tmp_path, test)
