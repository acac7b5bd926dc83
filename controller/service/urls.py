"""Which URLs of a user's the service may open: none that leads into the operator's own network.

A URL is http(s), without credentials, and every address its host resolves to must be global. The
rule is about addresses, not spellings: ``http://2130706433/`` and ``http://0x7f.1/`` resolve to the
loopback and are refused as that. Who connects, connects to an address that was checked
(``controller.service.fetch``), since a second question to the name server can be answered
differently. Prefixes that the operator allows are exempt from the check of addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from rlhfless.errors import TransientError, UserError

MAX_URL_CHARS = 2_000
RESOLVE_S = 10.0
PORTS = {"http": 80, "https": 443}
_USERINFO = re.compile(r"(?<=://)[^/?#]*@")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_url(url: str, param: str | None, *, credentials: bool = False) -> SplitResult:
    """The parts of an http(s) URL. Raises ``UserError`` naming ``param``, for ``user:password@``
    too unless ``credentials`` are kept apart from the URL where it is stored."""

    def bad(why: str) -> UserError:
        return UserError(f"{hidden(url)[:200]!r} cannot be opened: {why}", param=param)

    if len(url) > MAX_URL_CHARS:
        raise bad(f"a URL has at most {MAX_URL_CHARS:,} characters")
    if not url.isascii() or not url.isprintable() or any(mark in url for mark in ' \\<>"`{}|^'):
        raise bad("it has characters that a URL must escape")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise bad(str(error)) from error
    if parts.scheme not in PORTS:
        raise bad("only http and https URLs are")
    if not host or len(host) > 253:
        raise bad("it names no host")
    if port == 0:
        raise bad("it names no port")
    if "@" in parts.netloc and not credentials:
        raise bad("it holds a user or password, which would be stored and shown")
    return parts


def is_exempt(url: SplitResult, allowed: Sequence[str]) -> bool:
    """Whether a URL is below one of the ``allowed`` ones: of the same scheme, host and port, and in
    or below its path."""
    segments = unquote(url.path).split("/")
    if any(segment in (".", "..") for segment in segments) or "\\" in unquote(url.path):
        return False  # what it means is up to the server that reads it
    return any(_is_below(url, urlsplit(prefix)) for prefix in allowed)


def hidden(url: str) -> str:
    """A URL without the ``user:password@`` that it may hold, for messages."""
    return _USERINFO.sub("", url)


async def check_url(
    url: str, param: str, allowed: Sequence[str] = (), *, credentials: bool = False
) -> None:
    """Raises ``UserError`` naming ``param`` unless the service may open the URL now,
    ``TransientError`` if no name server answers. ``credentials``: see ``parse_url``."""
    parts = parse_url(url, param, credentials=credentials)
    if not is_exempt(parts, allowed):
        await global_addresses(*host_and_port(parts), param)


def host_and_port(url: SplitResult) -> tuple[str, int]:
    assert url.hostname is not None
    return url.hostname, url.port or PORTS[url.scheme]


async def global_addresses(host: str, port: int, param: str | None) -> list[str]:
    """The addresses of a host, each of them global. Raises as ``check_url`` does."""
    found = await addresses(host, port, param)
    for address in found:
        if not is_global(address):
            raise UserError(
                f"{host!r} is not a host of the public internet",
                param=param,
                hint="upload it if it is data, or have the operator of the service allow the URL",
            )
    return found


async def addresses(host: str, port: int, param: str | None) -> list[str]:
    """What the name server says. Raises ``UserError`` for a name that it does not know."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await resolve(host, port)
    except (socket.gaierror, UnicodeError, OSError) as error:
        if isinstance(error, TimeoutError) or getattr(error, "errno", 0) == socket.EAI_AGAIN:
            raise TransientError(f"the address of {host!r} cannot be found out now") from error
        raise UserError(f"there is no host {host!r}", param=param) from error
    return found


async def resolve(host: str, port: int) -> list[str]:
    """Addresses as numbers, as the system finds them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def is_global(address: str) -> bool:
    """Whether an address is one of the public internet, and so is every address inside it (of
    IPv4 in IPv6, 6to4, Teredo, NAT64)."""
    try:
        parsed: _Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    public = parsed.is_global and not (
        parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified
    )
    inside = _inside(parsed) if isinstance(parsed, ipaddress.IPv6Address) else []
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        public = True  # it is the address inside, which Python's releases see differently
    if isinstance(parsed, ipaddress.IPv6Address) and parsed in _NAT64:
        public = True
    return public and all(is_global(str(each)) for each in inside)


def _inside(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in found if each is not None]


def _is_below(url: SplitResult, prefix: SplitResult) -> bool:
    if prefix.scheme not in PORTS or not prefix.hostname:
        return False
    same = url.scheme == prefix.scheme and host_and_port(url) == host_and_port(prefix)
    folder = prefix.path.rstrip("/")
    return same and (url.path == folder or url.path.startswith(folder + "/") or not folder)
