"""A job's log: what is kept of what was said, once, bounded and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import fakeredis
import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.platforms.local_logs import LogSlice
from controller.service import log_files, log_keeper, logs
from controller.service.log_files import LogFiles, tidy
from controller.service.log_keeper import Bucket, tailing
from controller.service.logs import Line, Logs
from tests.support.service_api import SPEC, Api, with_api

FENCE = Fence(1, "a")
SAID = logging.getLogger("controller.somewhere")


class World:
    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.redis = fakeredis.FakeAsyncRedis(server=self.server, retry=Retry(NoBackoff(), 0))
        self.logs = Logs(self.redis)

    async def lines(self) -> list[tuple[str, str]]:
        page = await self.logs.read("job", limit=50_000)
        return [(line.source, line.text) for line in page.data]


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.redis.set(fence_key("job"), str(FENCE))
        await test(world)
        await world.redis.aclose()

    asyncio.run(main())


def test_lines_are_added_once_however_often_that_is_tried() -> None:
    async def test(world: World) -> None:
        lines = [Line("r1", str(number)) for number in range(5)]
        for _ in range(2):
            await world.logs.append("job", lines[:3], run="x", before=0, fence=FENCE)
        await world.logs.append("job", lines[1:], run="x", before=1, fence=FENCE)
        assert await world.lines() == [("r1", str(number)) for number in range(5)]
        await world.logs.append("job", lines[:1], run="y", before=0, fence=FENCE)
        assert len(await world.lines()) == 6
        with pytest.raises(LostLeaseError):
            await world.logs.append("job", lines, run="y", before=1, fence=Fence(0, "z"))

    run(test)


def test_the_newest_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEEP", 10)

    async def test(world: World) -> None:
        lines = [Line("r1", str(number)) for number in range(500)]
        await world.logs.append("job", lines, run="x", before=0, fence=FENCE)
        kept = await world.lines()
        assert kept[-1] == ("r1", "499")
        assert 10 <= len(kept) < 200

    run(test)


def test_a_job_hears_its_own_tasks_and_threads() -> None:
    async def speak(world: World, job: str) -> None:
        await world.redis.set(fence_key(job), str(FENCE))
        async with tailing(world.logs, job, FENCE):
            SAID.warning("of %s", job)
            await asyncio.to_thread(SAID.warning, "a thread of %s", job)
            await asyncio.create_task(asyncio.to_thread(SAID.error, "two\nlines"))

    async def test(world: World) -> None:
        SAID.warning("of nobody")
        await asyncio.gather(speak(world, "job"), speak(world, "other"))
        SAID.warning("of nobody")
        assert await world.lines() == [
            ("controller", "warning: of job"),
            ("controller", "warning: a thread of job"),
            ("controller", "error: two"),
            ("controller", "error: lines"),
        ]

    run(test)
    assert logging.getLogger(log_keeper.LOGGER).handlers == []


def test_instances_are_read_to_their_end(tmp_path: Path) -> None:
    file = tmp_path / "r1.log"
    file.write_text("of another job\n")
    start = file.stat().st_size
    parts = [LogSlice("r1", str(file), start), LogSlice("r2", str(tmp_path / "no"), 0)]
    dropped: list[LogSlice] = []

    async def test(world: World) -> None:
        async with tailing(
            world.logs, "job", FENCE, slices=lambda: parts, drop=lambda done: dropped.extend(done)
        ):
            with file.open("a") as out:
                out.write("first\nsecond\nno newline")
            end = file.stat().st_size
            with file.open("a") as out:
                out.write("of a third job\n")
            parts[0] = LogSlice("r1", str(file), start, end)
        assert await world.lines() == [("r1", "first"), ("r1", "second"), ("r1", "no newline")]
        assert dropped == [parts[0]]

    run(test)


def test_each_byte_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "r1.log"
    part = LogSlice("r1", str(file), 0)
    files = LogFiles()
    assert files.read([part]) == ([], 0, [])
    told: list[str] = []
    for text in ("one\ntw", "o", "\n\nthr", "ee\r\n"):
        with file.open("a", newline="") as out:
            out.write(text)
        found, left_out, done = files.read([part])
        told += [line.text for line in found]
        assert (left_out, done) == (0, [])
    assert told == ["one", "two", "", "three\r"]
    ended = LogSlice("r1", str(file), 0, file.stat().st_size)
    assert files.read([ended]) == ([], 0, [ended])
    assert files.read([ended]) == ([], 0, [])


def test_who_writes_too_fast_is_heard_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_READ_BYTES", 20)
    file = tmp_path / "r1.log"
    file.write_text("x" * 30 + "\n" + "y" * 30 + "\nend\n")
    found, left_out, _ = LogFiles().read([LogSlice("r1", str(file), 0)])
    assert [line.text for line in found] == ["end"]
    assert left_out == file.stat().st_size - 20


def test_a_line_without_end_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MAX_READ_BYTES", 20)
    file = tmp_path / "r1.log"
    files, part = LogFiles(), LogSlice("r1", str(file), 0)
    told: list[str] = []
    for text in ("x" * 15, "x" * 15, "x" * 5 + "\nafter\n"):
        with file.open("a") as out:
            out.write(text)
        told += [line.text for line in files.read([part])[0]]
    assert told == ["x" * 15, "after"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext ü", "plain\ttext ü"),
        ("\x1b[31mred\x1b[0m \x1b[2Kx\x07", "red x"),
        ("10 %\r50 %\r100 %\r\n", "100 %"),
        ("half a pair \ud800", "half a pair ?"),
        ("key=sk-12", "key=***"),
        ("a" * 4094 + "sk-12", "a" * 4094 + "*…"),
    ],
)
def test_lines_are_tidied(text: str, expected: str) -> None:
    shown = tidy(text, lambda line: line.replace("sk-12", "***"))
    assert shown == expected
    assert len(shown) <= log_files.MAX_CHARS


def test_a_flood_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_keeper, "BURST", 50)
    monkeypatch.setattr(log_keeper, "RATE", 0.0)
    file = tmp_path / "reward.log"

    async def test(world: World) -> None:
        part = LogSlice("reward", str(file), 0)
        async with tailing(world.logs, "job", FENCE, slices=lambda: [part]):
            file.write_text("".join(f"{number}\n" for number in range(10_000)))
        lines = await world.lines()
        assert len(lines) == 51
        assert lines[-2] == ("reward", "9999")
        assert lines[-1] == ("controller", "9950 lines were left out: they came too fast")

    run(test)


def test_a_bucket_fills_at_its_rate() -> None:
    bucket = Bucket(10.0, 20, 0.0)
    assert bucket.take(30, 0.0) == 20
    assert bucket.take(30, 0.0) == 0
    assert bucket.take(30, 1.0) == 10
    assert bucket.take(3, 100.0) == 3
    assert bucket.take(30, 100.0) == 17


def test_lines_wait_for_a_redis_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_keeper, "TURN_S", 0.001)

    async def test(world: World) -> None:
        async with tailing(world.logs, "job", FENCE):
            world.server.connected = False
            SAID.warning("meanwhile")
            await asyncio.sleep(0.02)
            world.server.connected = True
            SAID.warning("again")
        assert await world.lines() == [
            ("controller", "warning: meanwhile"),
            ("controller", "warning: again"),
        ]
        async with tailing(world.logs, "job", FENCE):
            world.server.connected = False
            SAID.warning("lost")
        world.server.connected = True
        assert len(await world.lines()) == 2

    run(test)


def test_a_stale_replicas_lines_are_not_kept() -> None:
    async def test(world: World) -> None:
        async with tailing(world.logs, "job", Fence(0, "old")):
            SAID.warning("stale")
        assert await world.lines() == []

    run(test)


def test_a_log_comes_in_pages_and_as_a_stream() -> None:
    async def test(api: Api) -> None:
        user = await api.user("acme", "submit")
        job = (await user.post("/v1/jobs", json=SPEC)).json()["id"]
        await api.redis.set(fence_key(job), str(FENCE))
        lines = [Line("r1", f"line {number}") for number in range(7)]
        await api.service.logs.append(job, lines, run="x", before=0, fence=FENCE)
        path = f"/v1/jobs/{job}/logs"
        first = (await user.get(path, params={"limit": 5})).json()
        assert first["has_more"]
        rest = (await user.get(path, params={"after": first["data"][-1]["id"]})).json()
        whole = first["data"] + rest["data"]
        assert [line["text"] for line in whole] == [line.text for line in lines]
        assert {line["source"] for line in whole} == {"r1"}
        await user.post(f"/v1/jobs/{job}/cancel")
        stream = {"Accept": "text/event-stream", "Last-Event-ID": whole[2]["id"]}
        answer = await user.get(path, headers=stream)
        told = [json.loads(t[6:]) for t in answer.text.splitlines() if t.startswith("data: ")]
        assert told == whole[3:]
        assert f"id: {whole[3]['id']}\nevent: log\n" in answer.text

    with_api(test)
