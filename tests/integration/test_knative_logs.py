"""What pods say, in the log of their job: over broken connections, crashes and takeovers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.platforms import knative_logs
from controller.platforms.base import Deployment
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_manifest import SHARED
from controller.platforms.kube import Kind, Labels, Object
from controller.platforms.local_logs import LogFiles
from controller.service.log_files import LogFiles as Reader
from rlhfless.errors import RlhflessError
from rlhfless.messages import FunctionName
from tests.support.given_cluster import only_standin
from tests.support.knative_cluster import TOKEN
from tests.support.knative_platforms import World, world
from tests.support.processes import frames_of, rollout, until

pytestmark = [pytest.mark.slow, only_standin("what its pods say is said by the test")]


class Said:
    """The job's log as its keeper has it."""

    def __init__(
        self,
        place: World,
        folder: Path,
        job: str = "job-1",
        to_s: float = 0.0,
        shared: str | None = None,
        functions: tuple[FunctionName, ...] = (),
    ) -> None:
        self.folder = folder
        files = LogFiles(str(folder), keep=False)
        files.make_folder()
        named = functions or ("rollout" if shared is None else "reward",)
        self.platform = KnativePlatform(
            [Deployment(function, 2) for function in named],
            job=job,
            ledger=Ledger(),
            kube=place.kube,
            settings=place.settings,
            token=TOKEN,
            logs=files,
            logged_to_s=to_s,
            kinds={} if shared is None else {"reward": shared},
        )
        self._reader = Reader()
        self.lines: list[tuple[str, str]] = []

    def read(self) -> list[str]:
        found, left_out, done = self._reader.read(self.platform.log_slices())
        assert not left_out
        self.platform.drop_logs(done)
        self.lines += [(line.source, line.text) for line in found]
        return [text for _, text in self.lines]

    def heard(self, words: str) -> int:
        return sum(words in text for text in self.read())


def test_what_a_pod_says_is_read_while_it_runs_and_to_its_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                await frames_of(platform, rollout())
                (pod,) = place.cluster.pods
                place.cluster.logs.lives[pod.name][-1].say("in the middle")
                await until(lambda: said.heard("in the middle") == 1)
                assert {source for source, _ in said.lines} == {pod.name}
            assert said.heard("closed") == 1  # what it said when it was told to go
            assert said.platform.log_slices() == []
            assert list((tmp_path / "logs").iterdir()) == []

    asyncio.run(run())


def test_the_last_words_of_a_pod_that_crashed(tmp_path: Path) -> None:
    """Which is started again, and may be sent the same call again."""

    async def run() -> None:
        async with world(tmp_path) as place:
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                with pytest.raises(RlhflessError):
                    await frames_of(platform, rollout("exit"))
                await until(lambda: said.heard("goodbye from the probe") > 0)
            (lives,) = place.cluster.logs.lives.values()
            crashes = sum(any(b"goodbye" in text for _, text in life.lines) for life in lives)
            assert said.heard("goodbye from the probe") == crashes

    asyncio.run(run())


def test_why_a_pod_ends_as_soon_as_it_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, app="broken") as place:
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                with pytest.raises(RlhflessError):
                    await frames_of(platform, rollout())
            assert said.heard("a_module_that_is_not_there")

    asyncio.run(run())


def test_a_connection_that_breaks_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            said = Said(place, tmp_path / "logs")
            place.cluster.logs.cut_after += [3, 5, 0]
            async with said.platform as platform:
                await frames_of(platform, rollout())
                life = place.cluster.logs.lives[place.cluster.pods[0].name][-1]
                life.say(*(f"line {number}." for number in range(20)))
                await until(lambda: said.heard("line 19.") == 1)
                told = [text for text in said.read() if text.startswith("line ")]
                assert told == [f"line {number}." for number in range(20)]
            assert not place.cluster.logs.cut_after

    asyncio.run(run())


def test_words_between_two_lives_are_read_of_the_earlier_one(tmp_path: Path) -> None:
    """A connection that is away while a container ends and is started again."""

    async def run() -> None:
        async with world(tmp_path) as place:
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                await frames_of(platform, rollout())
                pod = place.cluster.pods[0]
                await until(lambda: bool(place.cluster.logs.asked))
                life = place.cluster.logs.lives[pod.name][-1]
                life.say("before")
                await until(lambda: said.heard("before") == 1)
                life.ended = True  # the stream ends, though the process lives
                asked = len(place.cluster.logs.asked)
                await until(lambda: len(place.cluster.logs.asked) > asked)
                life.say("the last words")
                place.cluster.crash(pod.name)
                await until(lambda: said.heard("the last words") == 1)
                await until(lambda: any(q.get("previous") for q in place.cluster.logs.asked))

    asyncio.run(run())


def test_another_controller_goes_on_where_the_log_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            lost = Said(place, tmp_path / "lost")
            async with lost.platform:
                await frames_of(lost.platform, rollout())
                life = place.cluster.logs.lives[place.cluster.pods[0].name][-1]
                life.say("kept already")
                await until(lambda: lost.heard("kept already") == 1)
                taken = Said(place, tmp_path / "taken", to_s=time.time())
                async with taken.platform:
                    life.say("news")
                    await until(lambda: taken.heard("news") == 1)
                    await lost.platform.close()
                    assert not taken.heard("kept already")
                assert taken.heard("closed") == 1

    asyncio.run(run())


def test_own_pods_that_are_told_of_after_shared_ones_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            follow, own = place.kube.follow, asyncio.Event()

            async def follow_late(
                kind: Kind, namespace: str, labels: Labels
            ) -> AsyncGenerator[dict[str, Object], None]:
                if SHARED not in labels:
                    await own.wait()
                async for snapshot in follow(kind, namespace, labels):
                    yield snapshot

            lost = Said(place, tmp_path / "lost")
            async with lost.platform:
                await frames_of(lost.platform, rollout())
                life = place.cluster.logs.lives[place.cluster.pods[0].name][-1]
                life.say("kept already")
                await until(lambda: lost.heard("kept already") == 1)
                monkeypatch.setattr(place.kube, "follow", follow_late)
                both: tuple[FunctionName, ...] = ("rollout", "reward")
                taken = Said(place, tmp_path / "b", to_s=time.time(), shared="x", functions=both)
                async with taken.platform:
                    await until(lambda: True in taken.platform._told)
                    own.set()
                    await asyncio.sleep(1.1)
                    life.say("news")
                    await until(lambda: taken.heard("news") == 1)
                    assert not taken.heard("kept already")
                    await lost.platform.close()

    asyncio.run(run())


def test_nothing_of_other_jobs_and_no_role_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            said, others = Said(place, tmp_path / "a"), Said(place, tmp_path / "b", job="job-2")
            async with said.platform, others.platform:
                await frames_of(said.platform, rollout())
                await frames_of(others.platform, rollout())
                for pod in place.cluster.pods:
                    place.cluster.logs.lives[pod.name][-1].say(f"I am {pod.name}")
                await until(lambda: said.heard("I am") == others.heard("I am") == 1)
                assert {s for s, _ in said.lines}.isdisjoint({s for s, _ in others.lines})

    asyncio.run(run())


def test_shared_pods_are_told_of_while_one_job_alone_uses_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            first = Said(place, tmp_path / "a", shared="same")
            second = Said(place, tmp_path / "b", job="job-2", shared="same")
            async with first.platform:
                await first.platform.scale("reward", 1)
                await until(lambda: bool(place.cluster.logs.lives))
                ((life,),) = place.cluster.logs.lives.values()
                await until(lambda: len(place.cluster.logs.asked) == 1)
                life.say("of the first")
                await until(lambda: first.heard("of the first") == 1)
                async with second.platform:
                    logs = first.platform._logs
                    assert logs is not None
                    await until(lambda: not logs._alone)
                    life.say("of nobody")
                    await asyncio.sleep(0.2)
                await until(lambda: bool(logs._alone))
                await asyncio.sleep(1.1)  # lines are taken up by whole seconds
                life.say("of the first again")
                await until(lambda: first.heard("of the first again") == 1)
            assert not first.heard("of nobody")
            assert second.read() == []

    asyncio.run(run())


def test_without_the_right_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            place.api.denied.add(("get", "pods/log"))
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                await until(lambda: bool(platform._routes))
                assert len(await frames_of(platform, rollout())) == 3
                await until(lambda: "not kept any more" in caplog.text)
            assert said.read() == []

    asyncio.run(run())


def test_a_flood_waits_in_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knative_logs, "PIECE_BYTES", 10_000)

    async def run() -> None:
        async with world(tmp_path) as place:
            said = Said(place, tmp_path / "logs")
            async with said.platform as platform:
                await frames_of(platform, rollout())
                life = place.cluster.logs.lives[place.cluster.pods[0].name][-1]
                life.say(*(f"{number:01000d}" for number in range(3000)))

                def held() -> int:
                    return len(list((tmp_path / "logs").iterdir()))

                await until(lambda: held() == knative_logs.MOST_PIECES)
                await asyncio.sleep(0.1)
                assert held() == knative_logs.MOST_PIECES
                await until(lambda: said.heard(f"{2999:01000d}") == 1)
                assert len([text for text in said.read() if len(text) == 1000]) == 3000

    asyncio.run(run())
