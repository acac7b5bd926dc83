"""Fetching over real sockets of this machine, which the test declares to be public."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from controller.service import fetch as fetching
from controller.service import urls
from controller.service.fetch import fetch
from rlhfless.errors import TransientError, UserError

Answers = Mapping[str, bytes]


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Site:
    """``asked``: (Host header, path) of each request."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        assert fields["Accept-Encoding"] == "identity"
        self.asked.append((fields["Host"], path))
        writer.write(self.answers[path])


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    """A server at the port it yields; every connection is closed when it ends."""
    tasks: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):  # the client was faster
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1")
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            for _ in range(10):  # a connection is accepted in several turns; a server that is
                await asyncio.sleep(0)  # closed in between loses it
            server.close()
            await asyncio.gather(*tasks)


@asynccontextmanager
async def site(answers: Answers) -> AsyncIterator[Site]:
    found = Site(answers)
    async with serving(found.answer) as found.port:
        yield found


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the name server knows; 127.0.0.1 counts as public, 127.0.0.2 as it is."""
    known = {"good.example": ["127.0.0.1"], "bad.example": ["127.0.0.2"]}

    async def resolve(host: str, port: int) -> list[str]:
        return known.get(host, [host])

    monkeypatch.setattr(urls, "resolve", resolve)
    monkeypatch.setattr(urls, "is_global", lambda address: address == "127.0.0.1")
    return known


def fetched(answers: Answers, path: str = "/x", **options: object) -> tuple[bytes, Site]:
    async def main() -> tuple[bytes, Site]:
        got: list[bytes] = []
        async with site(answers) as found:
            url = f"http://good.example:{found.port}{path}"
            await fetch(url, got.append, param="url", **({"max_bytes": 1000} | options))  # type: ignore[arg-type]
        return b"".join(got), found

    return asyncio.run(main())


def test_the_name_goes_into_the_request_and_the_connection_to_the_checked_address(
    names: dict[str, list[str]],
) -> None:
    content, found = fetched({"/x?y=1": answer(200, b"rows")}, "/x?y=1#part")
    assert content == b"rows"
    assert found.asked == [(f"good.example:{found.port}", "/x?y=1")]


def test_the_address_that_was_checked_is_the_one_that_is_used(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    monkeypatch.setattr(urls, "resolve", rebinding)
    content, _ = fetched({"/x": answer(200, b"rows")})
    assert (content, asked) == (b"rows", ["good.example"])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(names: dict[str, list[str]], status: int) -> None:
    answers = {"/x": answer(status, location="y"), "/y": answer(200, b"rows", content_length="4")}
    assert fetched(answers)[0] == b"rows"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://bad.example/", "public internet"),
        ("http://127.0.0.2/", "public internet"),
        ("//bad.example/", "public internet"),
        ("file:///etc/passwd", "only http and https"),
        ("http://u:p@good.example/", "user or password"),
        ("/x", "more than 5 redirects"),
    ],
)
def test_a_redirect_is_under_the_same_rule(
    names: dict[str, list[str]], location: str, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        fetched({"/x": answer(302, location=location)})


def test_an_allowed_url_is_not_checked_but_where_it_leads_is(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> None:
    monkeypatch.setattr(urls, "is_global", lambda _: False)
    got: list[bytes] = []

    async def main(path: str) -> None:
        async with site({"/in/a": answer(200, b"rows"), "/in/b": answer(302, location="/c")}) as at:
            base = f"http://good.example:{at.port}"
            allowed = (f"{base}/in",)
            await fetch(base + path, got.append, param="url", max_bytes=9, allowed=allowed)

    asyncio.run(main("/in/a"))
    assert got == [b"rows"]
    for path in ("/in/b", "/c"):
        with pytest.raises(UserError, match="public internet"):
            asyncio.run(main(path))


@pytest.mark.parametrize("headers", [{}, {"content_length": "1001"}, {"content_length": "9" * 18}])
def test_a_large_answer_is_cut_off(names: dict[str, list[str]], headers: dict[str, str]) -> None:
    with pytest.raises(UserError, match="more than 1,000 bytes"):
        fetched({"/x": answer(200, b"r" * 1001, **headers)})


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (answer(404), UserError),
        (answer(206, b"part"), UserError),
        (answer(304), UserError),
        (answer(200, b"\x1f\x8b", content_encoding="gzip"), UserError),
        (answer(503), TransientError),
        (answer(429), TransientError),
        (b"nonsense\r\n\r\n", TransientError),
        (b"", TransientError),
        (answer(200, b"short", content_length="10"), TransientError),
    ],
)
def test_other_answers_are_refused(
    names: dict[str, list[str]], response: bytes, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        fetched({"/x": response})


def test_a_silent_server_is_given_up(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(handler: Handler) -> None:
        async with serving(handler) as port:
            url = f"http://good.example:{port}/"
            await fetch(url, lambda _: None, param="url", max_bytes=9)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(fetching, "SILENCE_S", 0.05)
    with pytest.raises(TransientError):
        asyncio.run(main(silent))
    monkeypatch.setattr(fetching, "SILENCE_S", 30.0)
    monkeypatch.setattr(fetching, "FETCH_S", 0.05)
    with pytest.raises(TransientError, match="within"):
        asyncio.run(main(silent))


def test_nobody_at_the_address_is_told(names: dict[str, list[str]]) -> None:
    with pytest.raises(TransientError):
        asyncio.run(fetch("http://good.example:1/", lambda _: None, param="url", max_bytes=9))


def test_proxies_of_the_environment_are_not_asked(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert fetched({"/x": answer(200, b"rows")})[0] == b"rows"
