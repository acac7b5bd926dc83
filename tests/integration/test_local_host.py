"""Several local platforms on one host, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalOptions, LocalPlatform
from controller.platforms.local_host import LocalHost
from controller.platforms.local_logs import LogSlice
from controller.platforms.local_sharing import REST_S
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import AnyFrame, Tokens, TrainDone
from tests.support.processes import (
    collect,
    command_of,
    frames_of,
    lives,
    marked,
    options,
    pid_in,
    rollout,
    train,
    until,
    wait_until_gone,
)
from tests.support.shared_host import guest, ids

pytestmark = pytest.mark.slow


def host_in(folder: Path, settings: LocalOptions | None = None) -> LocalHost:
    return LocalHost(str(folder / "logs"), settings or options(grace_s=2.0))


async def pid_of(platform: LocalPlatform) -> int:
    """Of the instance that serves a call; the probe's tokens are its pid."""
    (tokens,) = (f for f in await frames_of(platform, rollout()) if isinstance(f, Tokens))
    return tokens.tokens[0]


def append(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def text_of(parts: list[LogSlice]) -> str:
    return "".join(Path(p.path).read_bytes()[p.start : p.end].decode() for p in parts)


@pytest.mark.parametrize("zygote", [True, False], ids=["zygote", "fresh"])
def test_the_second_platform_gets_the_first_ones_idle_instance(
    tmp_path: Path, zygote: bool
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        books = Ledger(), Ledger()
        async with (
            host_in(tmp_path, options(zygote=zygote)) as host,
            guest(host, ledger=books[0]) as first,
            guest(host, ledger=books[1]) as second,
        ):
            pid = await pid_of(first)
            await asyncio.sleep(REST_S)
            assert await pid_of(second) == pid
            assert (ids(first), ids(second)) == ([], ["rollout-1"])
        ended_s = loop.time()
        one, other = (ledger.total(ended_s) for ledger in books)
        assert one.cold_s > 0 == other.cold_s
        spans = [span for ledger in books for span in ledger.spans]
        held_s = spans[-1].end_s - spans[0].start_s
        assert one.held_s + other.held_s == pytest.approx(held_s)
        assert books[0].spans[-1].end_s == books[1].spans[0].start_s

    asyncio.run(run())


def test_platforms_share_a_zygote_which_outlives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHFLESS_TEST_MARK", str(tmp_path))

    def zygotes() -> list[int]:
        """Those who lead the zygote's group; what is forked off it has groups of its own, and a
        command line like its."""
        found = marked(f"RLHFLESS_TEST_MARK={tmp_path}")
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in found}
        return [
            pid
            for pid, command in found.items()
            if "functions.zygote" in command and names[pid] != "rlhf-rollout"
        ]

    async def run() -> list[int]:
        async with host_in(tmp_path) as host:
            (zygote,) = zygotes()
            async with guest(host, kind="a") as first, guest(host, kind="b") as second:
                assert await pid_of(first) != await pid_of(second)
                assert zygotes() == [zygote]
            async with guest(host) as third:
                await pid_of(third)
                assert zygotes() == [zygote]
            return list(marked(f"RLHFLESS_TEST_MARK={tmp_path}"))

    wait_until_gone(asyncio.run(run()))


def test_a_killed_zygote_is_replaced_and_nobody_notices(tmp_path: Path) -> None:
    async def run() -> None:
        async with host_in(tmp_path) as host, guest(host, kind="a") as first:
            frames: list[AnyFrame] = []
            running = asyncio.create_task(collect(first, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            zygote = host.zygote._zygote
            assert zygote is not None
            os.kill(zygote._child.pid, signal.SIGKILL)
            async with guest(host, kind="b") as second:
                await pid_of(second)
            seen = len(frames)
            await until(lambda: len(frames) > seen + 3)
            running.cancel()

    asyncio.run(run())


def test_a_killed_instance_is_its_new_owners_loss(tmp_path: Path) -> None:
    async def run() -> None:
        async with host_in(tmp_path) as host, guest(host) as first, guest(host) as second:
            pid = await pid_of(first)
            await asyncio.sleep(REST_S)
            frames: list[AnyFrame] = []
            running = asyncio.create_task(collect(second, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            assert pid_in(frames) == pid
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(TransientError, match=r"rollout-1 \(pid \d+\) ended.*SIGKILL"):
                await running
            assert await pid_of(first) != pid
            assert (ids(first), ids(second)) == (["rollout-2"], [])

    asyncio.run(run())


def test_last_words_are_the_new_owners_only(tmp_path: Path) -> None:
    """What is told of a death quotes the log, of which another job wrote the beginning."""

    async def run() -> None:
        async with host_in(tmp_path) as host, guest(host) as first, guest(host) as second:
            await pid_of(first)
            append(host.logs.path("rollout-1"), "of the first job\n")
            await asyncio.sleep(REST_S)
            with pytest.raises(TransientError, match="goodbye from the probe") as caught:
                await frames_of(second, rollout("exit"))
            assert "of the first job" not in caught.value.detail
            assert text_of(first.log_slices()) == "of the first job\n"
            assert text_of(second.log_slices()) == "goodbye from the probe\n"

    asyncio.run(run())


def test_log_files_go_when_nobody_needs_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with host_in(tmp_path) as host:
            files = ["rollout-1.log", "zygote.log"]
            async with guest(host) as first, guest(host) as second:
                await pid_of(first)
                await asyncio.sleep(REST_S)
                await pid_of(second)
                (running,) = second.log_slices()
                assert running.end is None
                second.drop_logs([running])  # it is not over: nothing is dropped
                assert second.log_slices() == [running]
                first.drop_logs(first.log_slices())
                assert sorted(os.listdir(tmp_path / "logs")) == files
            (over,) = second.log_slices()
            assert text_of([over]) == "closed\n"
            second.drop_logs([over])
            assert os.listdir(tmp_path / "logs") == ["zygote.log"]
            assert second.log_slices() == []
        assert os.listdir(tmp_path / "logs") == []

    asyncio.run(run())


def test_a_function_that_cannot_start_is_its_jobs_trouble_only(tmp_path: Path) -> None:
    async def run() -> None:
        settings = options()
        settings = LocalOptions(
            apps={**settings.apps, "training": "tests.apps.probe:broken"},
            preload=(),
            retry_pause_s=0.02,
        )
        training, both = Deployment("training"), Deployment("rollout")
        async with host_in(tmp_path, settings) as host, guest(host, both) as good:
            async with guest(host, training) as bad:
                trained = frames_of(bad, train(tmp_path, "0/train/0"))
                answers = await asyncio.gather(trained, pid_of(good), return_exceptions=True)
                assert isinstance(answers[0], InternalError)
                assert isinstance(answers[1], int)
            assert await pid_of(good) == answers[1]

    asyncio.run(run())


@pytest.mark.parametrize("zygote", [True, False])
def test_instances_stand_back(tmp_path: Path, zygote: bool) -> None:
    async def run() -> None:
        settings = options(zygote=zygote, niceness=3)
        async with host_in(tmp_path, settings) as host, guest(host) as platform:
            ours = os.getpriority(os.PRIO_PROCESS, 0)
            theirs = os.getpriority(os.PRIO_PROCESS, await pid_of(platform))
            assert theirs == min(19, ours + 3)

    asyncio.run(run())


def test_closing_a_platform_leaves_the_others_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with host_in(tmp_path) as host, guest(host) as stays:
            frames: list[AnyFrame] = []
            async with guest(host) as goes:
                await goes.scale("rollout", 2)
                running = asyncio.create_task(collect(stays, frames, "slow:0.005"))
                await until(lambda: bool(frames) and len(ids(goes, "idle")) == 2)
            assert goes.instances() == ()
            seen = len(frames)
            await until(lambda: len(frames) > seen + 3)
            running.cancel()
            assert [i.id for i in host.instances()] == ids(stays)

    asyncio.run(run())


def test_closing_a_platform_does_not_wait_for_a_zygote_that_still_imports(tmp_path: Path) -> None:
    async def run() -> None:
        settings = LocalOptions(apps={"rollout": "tests.apps.probe:create"})  # imports torch
        async with host_in(tmp_path, settings) as host:
            async with guest(host) as hasty:
                await hasty.scale("rollout", 1)
            assert host.instances() == ()
            async with guest(host) as patient:
                pid = await pid_of(patient)
                assert "functions.zygote" in command_of(pid)
                assert ids(patient) == ["rollout-2"]

    asyncio.run(run())


def test_closing_the_host_kills_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_TEST_MARK", str(tmp_path))

    async def run() -> list[int]:
        async with host_in(tmp_path, options(grace_s=0.3)) as host:
            first, second = guest(host), guest(host, Deployment("training"))
            frames: list[AnyFrame] = []
            deaf = asyncio.create_task(collect(first, frames, "deaf:600"))
            (done,) = await frames_of(second, train(tmp_path, "0/train/0"))
            await until(lambda: bool(frames))
            assert isinstance(done, TrainDone)
            pids = list(marked(f"RLHFLESS_TEST_MARK={tmp_path}"))
            assert len(pids) == 4  # guardian, zygote and two instances
        with pytest.raises(TransientError):
            await deaf
        return pids

    pids = asyncio.run(run())
    assert not any(lives(pid) for pid in pids)
