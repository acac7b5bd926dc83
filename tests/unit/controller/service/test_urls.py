import asyncio
import socket

import pytest

from controller.service import urls
from controller.service.urls import check_url, hidden, is_exempt, is_global, parse_url
from rlhfless.errors import TransientError, UserError


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("100.64.0.1", False),  # carriers' NAT, and some clusters'
        ("169.254.169.254", False),  # the metadata of a cloud's machine
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("::127.0.0.1", False),
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("64:ff9b::7f00:1", False),  # NAT64 of it
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("not an address", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_global(address) == public


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://[::ffff:7f00:1]:8000/",
        "http://169.254.169.254/latest/meta-data/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
    ],
)
def test_no_spelling_of_a_private_address_is_taken(url: str) -> None:
    with pytest.raises(UserError, match="public internet") as refused:
        asyncio.run(check_url(url, "dataset.path"))
    assert refused.value.param == "dataset.path"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/x",
        "file:///etc/passwd",
        "http:///x",
        "http://",
        "https://user:secret@example.org/",
        "https://user@example.org/",
        "http://example.org:0/",
        "http://example.org:99999/",
        "http://[::1/",
        "http://exa mple.org/",
        "http://example.org/\r\nX: y",
        "http://example.org\\@127.0.0.1/",
        "http://ex\u00e4mple.org/",
        "http://example.org/" + "x" * 2000,
        "http://" + "x" * 300 + "/",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_url(url, "url")
    assert "secret" not in refused.value.detail


def test_every_address_of_a_name_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"good.example": ["8.8.8.8"], "mixed.example": ["8.8.8.8", "10.0.0.1"]}

    async def resolve(host: str, port: int) -> list[str]:
        if host == "away.example":
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return known[host]

    monkeypatch.setattr(urls, "resolve", resolve)
    asyncio.run(check_url("https://good.example/x", "p"))
    with pytest.raises(UserError, match="public internet"):
        asyncio.run(check_url("https://mixed.example/x", "p"))
    with pytest.raises(UserError, match="there is no host"):
        asyncio.run(check_url("https://unknown.example/x", "p"))
    with pytest.raises(TransientError):
        asyncio.run(check_url("https://away.example/x", "p"))
    # Those of rewards and webhooks may hold what is masked where they are kept.
    asyncio.run(check_url("https://user:secret@good.example/x", "p", credentials=True))


@pytest.mark.parametrize(
    ("url", "exempt"),
    [
        ("http://data.internal/sets", True),
        ("http://data.internal/sets/a.jsonl?x=1", True),
        ("http://data.internal:80/sets/a", True),
        ("http://data.internal/sets-of-others", False),
        ("http://data.internal/sets/../admin", False),
        ("http://data.internal/sets/%2e%2e/admin", False),
        ("http://data.internal/sets/..%2fadmin", False),
        ("http://data.internal/sets/%5c..%5cadmin", False),
        ("http://data.internal:8080/sets/a", False),
        ("https://data.internal/sets/a", False),
        ("http://data.internal.evil.example/sets/a", False),
        ("http://rewards.internal/anything", True),
    ],
)
def test_only_what_is_below_an_allowed_url_is_exempt(url: str, exempt: bool) -> None:
    allowed = ("http://data.internal/sets/", "http://rewards.internal", "ftp://x/", "")
    assert is_exempt(parse_url(url, None), allowed) == exempt


def test_a_url_is_told_without_its_password() -> None:
    assert hidden("https://u:p@host/x@y") == "https://host/x@y"
