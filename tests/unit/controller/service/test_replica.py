"""The replica's own socket."""

from __future__ import annotations

import socket

import pytest

from controller.service import replica
from rlhfless.errors import UserError


def test_answers_in_pieces_do_not_wait_for_acknowledgements() -> None:
    with replica.listen("127.0.0.1", 0) as listening:
        with socket.create_connection(listening.getsockname()):
            connection, _ = listening.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_said() -> None:
    with replica.listen("127.0.0.1", 0) as listening:
        with pytest.raises(UserError, match="cannot listen on 127.0.0.1") as error:
            replica.listen("127.0.0.1", listening.getsockname()[1])
    assert error.value.hint is not None and "--port" in error.value.hint
