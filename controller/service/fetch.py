"""Files from URLs that users name, without becoming their way into the operator's network.

The rule is that of ``controller.service.urls``. A connection goes to one of the addresses that
were checked, whatever the name server says a moment later; the host's name still goes into the
request and the TLS handshake. Redirects are followed by hand, each under the same rule. Proxies,
cookies and credentials play no part; nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import SplitResult, urljoin

import httpcore

from controller.service.urls import (
    addresses,
    global_addresses,
    host_and_port,
    is_exempt,
    parse_url,
)
from rlhfless.errors import TransientError, UserError

MAX_REDIRECTS = 5
FETCH_S = 600.0
"""For the whole file."""
SILENCE_S = 30.0
"""Without a byte, a connection is given up."""
_REDIRECTS = (301, 302, 303, 307, 308)
_RETRY = (408, 425, 429)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses of a host that are checked at that moment."""

    def __init__(self, param: str | None, exempt: bool) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._param = param
        self._exempt = exempt

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface's)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        find = addresses if self._exempt else global_addresses
        found = await find(host, port, self._param)
        for address in found:
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if address == found[-1]:
                    raise
        raise httpcore.ConnectError(f"no address of {host}")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise AssertionError("nobody asks for a socket file")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


async def fetch(
    url: str,
    write: Callable[[bytes], None],
    *,
    param: str | None,
    max_bytes: int,
    allowed: Sequence[str] = (),
) -> None:
    """Hand the content of a URL to ``write``, piece by piece (in a thread, one at a time).

    Raises ``UserError`` naming ``param`` for a URL that must not be opened, an answer that is no
    file, or one of more than ``max_bytes``; ``TransientError`` where another attempt may succeed.
    """
    try:
        async with asyncio.timeout(FETCH_S):
            at = url
            for _ in range(1 + MAX_REDIRECTS):
                further = await _hop(at, write, param, max_bytes, allowed)
                if further is None:
                    return
                at = urljoin(at, further)
    except TimeoutError:
        raise TransientError(f"{url} was not there within {FETCH_S:g} s") from None
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        why = str(error) or type(error).__name__
        raise TransientError(f"{url} cannot be read: {why}") from error
    except httpcore.UnsupportedProtocol as error:
        raise UserError(f"{url} cannot be read: {error}", param=param) from error
    raise UserError(f"{url} leads through more than {MAX_REDIRECTS} redirects", param=param)


async def _hop(
    url: str,
    write: Callable[[bytes], None],
    param: str | None,
    max_bytes: int,
    allowed: Sequence[str],
) -> str | None:
    """Read a URL to its end, or find where it leads."""
    parts = parse_url(url, param)
    backend = CheckedBackend(param, is_exempt(parts, allowed))
    headers = [
        ("Host", _host_header(parts)),
        ("User-Agent", "rlhfless"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
    ]
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), SILENCE_S)
    async with (
        httpcore.AsyncConnectionPool(
            ssl_context=_tls(), network_backend=backend, max_connections=1
        ) as pool,
        pool.stream("GET", _whole(parts), headers=headers, extensions={"timeout": timeout}) as got,
    ):
        said = {name.lower(): value.decode("latin-1") for name, value in got.headers}
        if got.status in _REDIRECTS and b"location" in said:
            return said[b"location"]
        _check_answer(url, got.status, said, param, max_bytes)
        num_bytes = 0
        async for piece in got.aiter_stream():
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise _too_large(url, max_bytes, param)
            await asyncio.to_thread(write, piece)
    return None


def _check_answer(
    url: str, status: int, said: dict[bytes, str], param: str | None, max_bytes: int
) -> None:
    if status >= 500 or status in _RETRY:
        raise TransientError(f"{url} was answered with status {status}")
    if status != 200:
        raise UserError(f"{url} was answered with status {status}", param=param)
    encoding = said.get(b"content-encoding", "identity").lower()
    if encoding != "identity":
        raise UserError(f"{url} was answered compressed ({encoding[:40]})", param=param)
    length = said.get(b"content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(url, max_bytes, param)


def _too_large(url: str, max_bytes: int, param: str | None) -> UserError:
    return UserError(f"{url} has more than {max_bytes:,} bytes", param=param)


def _host_header(parts: SplitResult) -> str:
    host, port = host_and_port(parts)
    name = f"[{host}]" if ":" in host else host
    return name if parts.port is None else f"{name}:{port}"


def _whole(parts: SplitResult) -> str:
    return parts._replace(fragment="", path=parts.path or "/").geturl()


def _tls() -> ssl.SSLContext:
    """Of the system's certificates, or those that SSL_CERT_FILE names."""
    return ssl.create_default_context()
