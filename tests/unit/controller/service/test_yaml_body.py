"""Job files as bodies: what YAML says, and what of YAML is refused."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from controller.service.http import read_object
from controller.service.refusals import TooLargeError
from controller.service.yaml_body import MAX_BYTES, MAX_DEPTH, is_yaml, read_yaml
from rlhfless.errors import UserError


def read(body: bytes, content_type: str = "application/yaml") -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode())]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    return asyncio.run(read_object(request, 1 << 20))


def test_a_job_file_is_read() -> None:
    body = b"# a job\nname: mine\nrewards:\n  - python: r.py:f # ours\ntraining: {steps: 3}\n"
    told = {"name": "mine", "rewards": [{"python": "r.py:f"}], "training": {"steps": 3}}
    assert read(body) == told
    assert read(body, "text/yaml; charset=utf-8") == told


def test_keys_are_strings_as_in_json() -> None:
    assert read(b"metadata: {1: a, no: b}") == {"metadata": {"1": "a", "false": "b"}}


def test_json_stays_json() -> None:
    assert read(b'{"a": 1}', "application/json") == {"a": 1}
    with pytest.raises(UserError, match="not JSON"):
        read(b"a: 1", "application/json")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"a: &x [1]\nb: *x", "alias"),
        (b"a: !!python/object/apply:os.getcwd []", "tag"),
        (b"a: !!bool 3", "tag"),
        (b"[" * 60_000, f"{MAX_DEPTH} levels"),
        (b"- " * 30_000, f"{MAX_DEPTH} levels"),
        (b"{a: " * 10_000, f"{MAX_DEPTH} levels"),
        (b"a: [", "not YAML"),
        (b"a: 2024-99-99", "not YAML"),
        (b"a: " + b"9" * 5000, "not YAML"),
        (b"\xff", "not text"),
        (b"a: 2024-01-01", "JSON has not"),
        (b"a: .inf", "JSON has not"),
        (b"a: " + b":".join([b"59"] * 5000), "JSON has not"),
        (b"- a", "YAML mapping"),
        (b"", "YAML mapping"),
    ],
)
def test_what_no_job_file_needs_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read(body)


def test_a_job_file_has_a_bound_of_its_own() -> None:
    with pytest.raises(TooLargeError):
        read(b"a: " + b"x" * MAX_BYTES)


def test_depth_counts_levels_not_collections() -> None:
    assert len(read_yaml(b"[" + b"[], " * 1000 + b"]")) == 1000


@pytest.mark.parametrize("content_type", ["", "application/json", "text/plain", "yaml"])
def test_only_yaml_is_yaml(content_type: str) -> None:
    assert not is_yaml(content_type)
