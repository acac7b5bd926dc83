"""The zygote's reports to the controller; what it forks is tested with the local platform."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controller.platforms.local_processes import _Zygote
from rlhfless.errors import InternalError, RlhflessError, TransientError
from rlhfless.lifeline import Home


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        home = Home()
        yield home
        home.close()
        assert list(Path(folder).iterdir()) == []


@asynccontextmanager
async def zygote_that(home: Home, does: str) -> AsyncGenerator[_Zygote]:
    """A zygote's stand-in: a shell that waits for the first request and then ``does``."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"read line; {does}", stdin=theirs.fileno(), start_new_session=True
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    zygote = _Zygote(home, child, reader, writer)
    try:
        yield zygote
    finally:
        await zygote.close()


@pytest.mark.parametrize(
    ("does", "family", "words"),
    [
        ("echo oops >&0; exec sleep 600", InternalError, "broken report"),
        ("head -c 100000 /dev/zero >&0; exec sleep 600", InternalError, "broken report"),
        ('echo \'{"spawned": 7, "pid": 1}\' >&0; exec sleep 600', InternalError, "broken report"),
        ("exit 1", TransientError, "died"),
    ],
    ids=["no JSON", "too long", "unknown", "its end"],
)
def test_what_is_to_be_spawned_fails_clearly(
    home: Home, does: str, family: type[RlhflessError], words: str
) -> None:
    async def main() -> None:
        async with zygote_that(home, does) as zygote:
            both = (zygote.spawn({}), zygote.spawn({}))
            for failed in await asyncio.gather(*both, return_exceptions=True):
                assert type(failed) is family
                assert words in str(failed)
            assert zygote.closed
            with pytest.raises(family, match=words):
                await zygote.spawn({})

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_report_that_means_nothing_is_passed_over(home: Home) -> None:
    does = """echo '{"ready": true}' >&0; echo '[]' >&0; exit"""

    async def main() -> None:
        async with zygote_that(home, does) as zygote:
            with pytest.raises(TransientError, match="died"):
                await zygote.spawn({})

    asyncio.run(asyncio.wait_for(main(), 60))
