"""What a service asks of its users' trackers."""

import socket
from typing import Any

import pytest

from controller.integrations import kinds
from controller.integrations.addresses import guard_addresses
from controller.integrations.rules import check_strangers
from rlhfless.errors import UserError
from tests.support.trackers import job_spec

ALLOWED = ("https://wandb.internal/team",)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kinds.KINDS:
        monkeypatch.setitem(kinds.KINDS, name, kinds.Kind("pytest", name, name, name))


@pytest.mark.parametrize(
    ("integration", "param"),
    [
        ({"type": "mlflow"}, "url"),
        ({"type": "trackio"}, "url"),
        ({"type": "wandb"}, "api_key"),
        ({"type": "wandb", "api_key": "12345", "url": "https://wandb.internal/other"}, "url"),
    ],
)
def test_what_a_service_cannot_run(integration: dict[str, Any], param: str) -> None:
    with pytest.raises(UserError) as raised:
        check_strangers(job_spec({"type": "tensorboard"}, integration), ALLOWED)
    assert raised.value.param == f"integrations.1.{param}"


def test_what_a_service_runs() -> None:
    spec = job_spec(
        {"type": "tensorboard"},
        {"type": "wandb", "api_key": "12345"},
        {"type": "wandb", "api_key": "12345", "url": "https://wandb.internal/team/x"},
        {"type": "mlflow", "url": "https://mlflow.example"},
    )
    check_strangers(spec, ALLOWED)


def test_a_guarded_process_resolves_no_address_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # put back at the end
    guard_addresses(["127.0.0.2"])
    for host in ("127.0.0.1", b"127.0.0.1", "localhost", "169.254.169.254", "::1", "2130706433"):
        with pytest.raises(PermissionError, match="not a host of the public internet"):
            socket.getaddrinfo(host, 80)
    assert socket.getaddrinfo("127.0.0.2", 80)
    assert socket.getaddrinfo("1.1.1.1", 80)
    with pytest.raises(PermissionError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
