"""The routes of what a job leaves: steps, samples, timeline, checkpoints."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest

from controller.fencing import Fence, fence_key
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.ledger import Ledger, Usage
from controller.service.byte_range import RangeError, byte_range
from controller.service.samples import SampleRow, samples_name
from controller.service.timeline_log import SpanWriter
from rlhfless.checkpoints import Checkpoint, CheckpointFile, checkpoint_prefix, commit_checkpoint
from rlhfless.objects import sha256
from tests.support.service_api import SPEC, Api, refused, with_api

STEPS = 5
WEIGHTS = bytes(range(256)) * 10


class Left:
    """A job, what it left, and a client that may read it."""

    def __init__(self, api: Api, user: httpx.AsyncClient, job: str) -> None:
        self.api = api
        self.user = user
        self.job = job
        self.objects = api.service.objects

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.user.get(f"/v1/jobs/{self.job}/{path}", **options)

    async def all(self, path: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            after = {"after": found[-1]["id"]} if found else {}
            answer = await self.get(path, params={**params, **after})
            assert answer.status_code == 200, answer.text
            found += answer.json()["data"]
            if not answer.json()["has_more"]:
                return found

    async def step(self, step: int) -> None:
        """Commit a step, counted from 0."""
        record = StepRecord(
            step=step,
            version=step + 1,
            metrics={"step": step + 1, "reward/mean": step / 10},
            position={},
            plan={"actors": step},
            usage={"rollout": Usage(1.0, 2.0, 0.5, None), "training": Usage(0.0, 1.0, 0.0, 0.25)},
        )
        notes = {
            "usage": {"training": msgspec.to_builtins(Usage(0.0, 1.0 + step, 0.5, 0.25))},
            "wall_s": float(step),
        }
        rows = [
            SampleRow(
                id=f"{step}/0/{k}",
                prompt="p",
                completion="c",
                reward=float(k % 3),
                rewards={"right": 1.0},
                num_tokens=1,
                finish_reason="stop",
                version=step,
                pieces=["c"],
                logprobs=[-0.5],
            )
            for k in range(8)
        ]
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        self.objects.put(samples_name(self.job, step + 1), gzip.compress(lines))
        await JobStore(self.api.redis, self.job).commit(record, b"", **notes)

    def checkpoint(self, step: int, *, final: bool = False) -> None:
        prefix = checkpoint_prefix(self.job, step)
        contents = {"config.json": b"{}", "adapter/model.safetensors": WEIGHTS, "empty": b""}
        for name, data in contents.items():
            self.objects.put(f"{prefix}/{name}", data)
        self.objects.put(f"{prefix}/other", b"not in the manifest")
        files = [
            CheckpointFile(name=name, size=len(data), sha256=sha256(data))
            for name, data in contents.items()
        ]
        made = Checkpoint(
            step=step,
            version=step,
            created_at=1e9 + step,
            files=files,
            metrics={"reward/mean": 0.5},
            final=final,
        )
        assert commit_checkpoint(self.objects, prefix, made)


def with_job(test: Callable[[Left], Awaitable[None]], steps: int = STEPS) -> None:
    async def main(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        left = Left(api, user, job)
        for step in range(steps):
            await left.step(step)
        await test(left)

    with_api(main)


def test_metrics_and_plans_come_in_pages() -> None:
    async def test(left: Left) -> None:
        metrics = await left.all("metrics", limit=2)
        assert [m["id"] for m in metrics] == ["1", "2", "3", "4", "5"]
        assert metrics[2]["metrics"] == {"step": 3, "reward/mean": 0.2}
        plans = await left.all("plans", limit=3)
        assert [(p["step"], p["plan"]["actors"]) for p in plans] == [(s + 1, s) for s in range(5)]
        assert await left.all("metrics", after="99") == []

    with_job(test)


def test_usage_is_in_all_by_function_and_by_step() -> None:
    async def test(left: Left) -> None:
        usage = (await left.get("usage", params={"limit": 2})).json()
        assert usage["has_more"]
        assert usage["wall_s"] == STEPS - 1
        assert usage["total"] == {
            "held_s": 5.5,
            "busy_s": 5.0,
            "idle_s": 0.5,
            "cold_s": 0.0,
            "usd": 0.25,
        }
        assert usage["functions"].keys() == {"training"}
        steps = await left.all("usage", limit=2)
        assert [s["step"] for s in steps] == [1, 2, 3, 4, 5]
        assert steps[0]["functions"]["rollout"]["usd"] is None
        assert steps[0]["functions"]["rollout"]["held_s"] == 3.5

    with_job(test)


def test_samples_of_the_newest_step_and_of_any() -> None:
    async def test(left: Left) -> None:
        newest = await left.all("rollouts", limit=3)
        assert [s["id"] for s in newest] == [f"4/0/{k}" for k in range(8)]
        assert newest[0]["tokens"] is None
        best = await left.all("rollouts", step=2, sort="-reward", tokens=True, limit=3)
        assert [s["reward"] for s in best] == [2.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
        assert {s["step"] for s in best} == {2}
        assert best[0]["tokens"] == [{"text": "c", "logprob": -0.5}]

    with_job(test)


def test_samples_are_sent_once() -> None:
    async def test(left: Left) -> None:
        first = await left.get("rollouts?step=2")
        tag = {"If-None-Match": f'"x", W/{first.headers["etag"]}'}
        again = await left.get("rollouts?step=2", headers=tag)
        assert (again.status_code, again.content) == (304, b"")
        assert "no-cache" in first.headers["cache-control"]
        assert first.headers["vary"] == "Authorization"
        for other in ("step=3", "step=2&sort=reward", "step=2&tokens=true", "step=2&limit=3"):
            assert (await left.get(f"rollouts?{other}", headers=tag)).status_code == 200
        stranger = await left.api.user("rival", "read")
        refused(await stranger.get(f"/v1/jobs/{left.job}/rollouts?step=2", headers=tag), 404)

    with_job(test)


def test_only_committed_steps_are_shown() -> None:
    async def test(left: Left) -> None:
        assert await left.all("rollouts") == []
        left.objects.put(samples_name(left.job, 1), b"of a step under way")
        assert "none is" in refused(await left.get("rollouts?step=1"), 404)["detail"]
        assert (await left.get("usage")).json()["total"]["held_s"] == 0.0
        for path in ("metrics", "plans", "timeline", "checkpoints", "logs"):
            assert await left.all(path) == []

    with_job(test, steps=0)


def test_what_is_lost_or_damaged_is_told() -> None:
    async def test(left: Left) -> None:
        left.objects.delete(samples_name(left.job, 1))
        left.objects.put(samples_name(left.job, 2), b"\x1f\x8b no")
        assert "no longer kept" in refused(await left.get("rollouts?step=1"), 410)["detail"]
        assert "damaged" in refused(await left.get("rollouts?step=2"), 410)["detail"]
        left.checkpoint(2)
        prefix = checkpoint_prefix(left.job, 4)
        left.objects.put(f"{prefix}/manifest.json", b'{"step": 4')
        assert [c["step"] for c in await left.all("checkpoints")] == [2]
        assert "damaged" in refused(await left.get("checkpoints/4"), 410)["detail"]
        left.objects.delete(f"{checkpoint_prefix(left.job, 2)}/config.json")
        left.objects.put(f"{checkpoint_prefix(left.job, 2)}/adapter/model.safetensors", b"half")
        for name in ("config.json", "adapter/model.safetensors"):
            refused(await left.get(f"checkpoints/2/files/{name}"), 410)

    with_job(test)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("metrics?after=x", 422),
        ("plans?after=-1", 422),
        ("usage?after=1e9", 422),
        ("metrics?after=" + "9" * 400, 422),
        ("metrics?limit=101", 422),
        ("timeline?after=x", 422),
        ("timeline?limit=1001", 422),
        ("logs?after=x", 422),
        ("rollouts?step=0", 422),
        ("rollouts?step=x", 422),
        ("rollouts?step=6", 404),
        ("rollouts?step=1000000000000000000000", 422),
        ("rollouts?sort=length", 422),
        ("rollouts?after=nobody", 404),
        ("checkpoints?after=x", 422),
        ("checkpoints/3", 404),
        ("checkpoints/newest", 422),
        ("checkpoints/latest", 404),
        ("checkpoints/latest/files/config.json", 404),
        ("checkpoints/..%2f..%2f/files/config.json", 404),
    ],
)
def test_a_bad_question_is_refused_with_a_reason(path: str, status: int) -> None:
    async def test(left: Left) -> None:
        refused(await left.get(path), status)

    with_job(test)


def test_the_timeline_is_read_in_pages() -> None:
    async def test(left: Left) -> None:
        fence = Fence(1, "a")
        await left.api.redis.set(fence_key(left.job), str(fence))
        ledger = Ledger()
        for number in range(5):
            ledger.started(f"r{number}", "rollout", float(number))
            ledger.phase(f"r{number}", "busy", number + 10.0)
        await SpanWriter(left.api.redis, left.job, fence, ledger, 1e9).save(20.0, last=True)
        spans = await left.all("timeline", limit=3)
        assert [s["phase"] for s in spans] == ["cold"] * 5 + ["busy"] * 5
        assert spans[0]["start_at"] == 1e9
        assert spans[0]["end_at"] == 1e9 + 10
        assert len(await left.all("timeline", limit=1000)) == 10

    with_job(test)


def test_checkpoints_are_listed_newest_first() -> None:
    async def test(left: Left) -> None:
        for step in (2, 4, 10):
            left.checkpoint(step, final=step == 10)
        listed = await left.all("checkpoints", limit=1)
        assert [c["step"] for c in listed] == [10, 4, 2]
        assert [c["final"] for c in listed] == [True, False, False]
        first = listed[0]
        assert first["reference"] == f"checkpoint:{left.job}/10"
        assert first["created_at"] == 1e9 + 10
        assert {f["name"]: f["bytes"] for f in first["files"]} == {
            "config.json": 2,
            "adapter/model.safetensors": len(WEIGHTS),
            "empty": 0,
        }
        assert (await left.get("checkpoints/latest")).json() == first
        assert (await left.get("checkpoints/2")).json() == listed[2]

    with_job(test)


def test_a_checkpoints_files_are_sent_whole_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.checkpoints.READ_BYTES", 100)

    async def test(left: Left) -> None:
        left.checkpoint(2)
        path = "checkpoints/2/files/adapter/model.safetensors"
        whole = await left.get(path)
        assert whole.content == WEIGHTS
        assert whole.headers["content-length"] == str(len(WEIGHTS))
        assert whole.headers["accept-ranges"] == "bytes"
        assert "model.safetensors" in whole.headers["content-disposition"]
        etag = whole.headers["etag"]
        assert etag == f'"{sha256(WEIGHTS)}"'
        part = await left.get(path, headers={"Range": "bytes=150-349"})
        assert (part.status_code, part.content) == (206, WEIGHTS[150:350])
        assert part.headers["content-range"] == f"bytes 150-349/{len(WEIGHTS)}"
        rest = await left.get(path, headers={"Range": "bytes=2000-", "If-Range": etag})
        assert (rest.status_code, rest.content) == (206, WEIGHTS[2000:])
        changed = await left.get(path, headers={"Range": "bytes=2000-", "If-Range": '"old"'})
        assert (changed.status_code, changed.content) == (200, WEIGHTS)
        beyond = await left.get(path, headers={"Range": f"bytes={len(WEIGHTS)}-"})
        refused(beyond, 416)
        assert beyond.headers["content-range"] == f"bytes */{len(WEIGHTS)}"
        known = await left.get(path, headers={"If-None-Match": etag})
        assert (known.status_code, known.content) == (304, b"")
        empty = await left.get("checkpoints/latest/files/empty")
        assert (empty.status_code, empty.content) == (200, b"")

    with_job(test)


@pytest.mark.parametrize(
    "name",
    [
        "other",
        "manifest.json",
        "..%2f000004%2fconfig.json",
        "%2fetc%2fpasswd",
        "adapter/../config.json",
        "adapter",
        "%00",
        "",
    ],
)
def test_only_files_of_the_manifest_can_be_had(name: str) -> None:
    async def test(left: Left) -> None:
        for step in (2, 4):
            left.checkpoint(step)
        answer = await left.get(f"checkpoints/2/files/{name}")
        if name == "adapter/../config.json":  # the client tidies that
            assert answer.content == b"{}"
        else:
            refused(answer, 404)

    with_job(test)


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        (None, 10, None),
        ("bytes=0-", 10, (0, 10)),
        ("bytes=0-0", 10, (0, 1)),
        ("bytes=3-5", 10, (3, 6)),
        ("bytes=3-500", 10, (3, 10)),
        ("bytes=-3", 10, (7, 10)),
        ("bytes=-30", 10, (0, 10)),
        ("bytes=-", 10, None),
        ("bytes=5-3", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("lines=0-1", 10, None),
        ("bytes=" + "9" * 30 + "-", 10, None),
    ],
)
def test_ranges(header: str | None, size: int, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, size) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_ranges_outside_of_the_file(header: str) -> None:
    with pytest.raises(RangeError):
        byte_range(header, 10)
