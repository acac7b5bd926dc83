"""The replica's own socket."""

from __future__ import annotations

import socket

import pytest

from controller.service.replica import listen
from rlhfless.errors import UserError


def test_answers_in_pieces_do_not_wait_for_acknowledgements() -> None:
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_said() -> None:
    with (
        listen("127.0.0.1", 0) as listening,
        pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1") as error,
    ):
        listen("127.0.0.1", listening.getsockname()[1])
    assert error.value.hint is not None
    assert "--port" in error.value.hint
