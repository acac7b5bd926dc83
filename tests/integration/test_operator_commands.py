"""``rlhfless keys`` and ``rlhfless tenants`` on the Redis of a service that runs, or does not."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from controller.redis_server import open_redis
from controller.service.keys import ApiKeys
from controller.service.tenants import Limits, Tenants
from rlhfless.cli.main import app

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a service that was started once and does not run."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    (tmp_path / "redis").mkdir()
    return str(tmp_path)


def rlhfless(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_keys_of_a_service_that_does_not_run(data: str) -> None:
    named = ("--tenant", "acme", "--name", "[lap]top", "--scope")
    shown = rlhfless("keys", "create", *named, "admin", "--data", data)
    text = shown.stdout.strip()
    told = json.loads(rlhfless("keys", "create", *named, "read", "--data", data, "--json").stdout)
    assert (told["scope"], told["tenant"]) == ("read", "acme")

    async def check() -> None:
        async with open_redis(f"{data}/redis") as redis:
            keys = ApiKeys(redis)
            assert (await keys.authenticate(text)).scope == "admin"
            assert (await keys.authenticate(told["key"])).id == told["id"]

    asyncio.run(check())
    listed = rlhfless("keys", "list", "--data", data).stdout
    assert listed.count("[lap]top") == 2
    assert text.rpartition("_")[2] not in listed
    revoked = rlhfless("keys", "revoke", told["id"], "--data", data)
    assert revoked.exit_code == 0
    lines = rlhfless("keys", "list", "--data", data, "--tenant", "acme", "--json").stdout
    keys = [json.loads(line) for line in lines.splitlines()]
    assert [key["revoked_at"] is None for key in keys] == [True, False]
    assert all(key["key"] is None for key in keys)
    assert rlhfless("keys", "list", "--data", data, "--tenant", "x", "--json").stdout == ""


def test_limits_of_tenants(data: str) -> None:
    numbers = ("--max-jobs", "3", "--max-usd", "2.5", "--weight", "2")
    assert rlhfless("tenants", "set", "acme", *numbers, "--data", data).exit_code == 0
    change = ("--max-usd", "none", "--max-function-seconds", "1e6")
    shown = rlhfless("tenants", "set", "acme", *change, "--data", data, "--json")
    quota = json.loads(shown.stdout)["quota"]
    assert quota == {
        "weight": 2.0,
        "max_jobs": 3,
        "max_instances": None,
        "max_function_seconds": 1e6,
        "max_usd": None,
    }

    async def check() -> None:
        async with open_redis(f"{data}/redis") as redis:
            assert await Tenants(redis).limits("acme") == Limits(**quota)

    asyncio.run(check())
    assert "acme" in rlhfless("tenants", "list", "--data", data).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("keys", "create", "--tenant", "No!", "--name", "x"), "cannot be a tenant's name"),
        (("keys", "revoke", "0" * 16), "there is no key"),
        (("tenants", "set", "acme"), "nothing is to be changed"),
        (("tenants", "set", "acme", "--max-jobs", "1.5"), "--max-jobs is a whole number"),
        (("tenants", "set", "acme", "--weight", "none"), "--weight is a number"),
        (("tenants", "set", "acme", "--max-usd", "nan"), "max_usd cannot be nan"),
    ],
)
def test_what_cannot_be_is_said(data: str, words: tuple[str, ...], said: str) -> None:
    result = rlhfless(*words, "--data", data)
    assert result.exit_code == 2
    assert said in result.stderr


def test_where_no_service_was_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    result = rlhfless("keys", "list", "--data", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "there is no service's data" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_running_service_knows_a_new_key_at_once(data: str) -> None:
    async def main() -> None:
        async with open_redis(f"{data}/redis") as redis:
            command = [sys.executable, "-m", "rlhfless.cli.main", "keys", "create"]
            command += ["--tenant", "acme", "--name", "x", "--data", data]
            made = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True
            )
            assert (await ApiKeys(redis).authenticate(made.stdout.strip())).scope == "submit"

    asyncio.run(main())
