import asyncio
import os
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest

from controller.service import input_cache
from controller.service.input_cache import InputCache, to_end
from rlhfless.errors import UserError


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_cache, "POLL_S", 0.001)


def write(folder: str, name: str, num_bytes: int) -> None:
    Path(folder, name).write_bytes(b"x" * num_bytes)


class Maker:
    """Counts how often it was asked; makes one file of ``num_bytes``."""

    def __init__(self, num_bytes: int = 10) -> None:
        self.calls = 0
        self.num_bytes = num_bytes

    async def __call__(self, folder: str) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        write(folder, "x", self.num_bytes)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_an_entry_is_made_once_for_all(tmp_path: Path) -> None:
    make = Maker()
    caches = [InputCache(str(tmp_path), 1000) for _ in range(3)]  # as of three replicas

    async def use(cache: InputCache) -> None:
        async with cache.held("key", make) as folder:
            assert os.listdir(folder) == ["x"]

    async def test() -> None:
        await asyncio.gather(*(use(cache) for cache in caches * 5))

    run(test())
    assert make.calls == 1
    assert entries(tmp_path) == ["key", "key.lock"]


def test_what_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    cache = InputCache(str(tmp_path), 1000)

    async def fail(folder: str) -> None:
        write(folder, "half", 1)
        raise UserError("no")

    async def test() -> None:
        with pytest.raises(UserError):
            async with cache.held("key", fail):
                raise AssertionError
        assert entries(tmp_path) == ["key.lock"]
        async with cache.held("key", Maker()) as folder:
            assert os.listdir(folder) == ["x"]

    run(test())


def test_whoever_is_cancelled_leaves_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    cache = InputCache(str(tmp_path), 1000)

    async def hang(folder: str) -> None:
        write(folder, "half", 1)
        await asyncio.Event().wait()

    async def hold(make: input_cache.Make) -> None:
        async with cache.held("key", make):
            pass

    async def test() -> None:
        first = asyncio.create_task(hold(hang))
        second = asyncio.create_task(hold(Maker()))
        await asyncio.sleep(0.02)
        assert not second.done()
        first.cancel()
        await second
        assert entries(tmp_path) == ["key", "key.lock"]

    run(test())


def test_parts_of_who_died_are_removed(tmp_path: Path) -> None:
    (tmp_path / "key.part-dead").mkdir()
    (tmp_path / "key.part-dead" / "half").write_bytes(b"x")

    async def test() -> None:
        async with InputCache(str(tmp_path), 1000).held("key", Maker()):
            assert entries(tmp_path) == ["key", "key.lock"]

    run(test())


def test_what_is_unused_for_longest_goes_and_what_is_used_stays(tmp_path: Path) -> None:
    cache = InputCache(str(tmp_path), 250)

    async def hold(key: str, age_s: int) -> None:
        async with cache.held(key, Maker(100)):
            pass
        os.utime(tmp_path / f"{key}.lock", (1e9 - age_s, 1e9 - age_s))

    async def test() -> None:
        async with cache.held("used", Maker(100)):
            os.utime(tmp_path / "used.lock", (1, 1))
            await hold("old", 20)
            async with cache.held("young", Maker(100)):
                assert entries(tmp_path) == ["used", "used.lock", "young", "young.lock"]
        await hold("newest", 0)
        assert "newest" in entries(tmp_path)  # never the one that was just made
        assert "used" not in entries(tmp_path)

    run(test())


def test_a_file_may_be_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "inputs").write_text("")

    async def test() -> None:
        with pytest.raises(UserError, match="cannot use"):
            async with InputCache(str(tmp_path / "inputs"), 1).held("key", Maker()):
                raise AssertionError

    run(test())


def test_a_thread_is_stopped_and_waited_for() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        began.set()
        assert stop.wait(60)
        ended.set()
        raise UserError("nobody hears this")

    async def test() -> None:
        task = asyncio.create_task(to_end(work))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert await to_end(lambda _: 7) == 7

    run(test())
