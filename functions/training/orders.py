"""What a leader and its followers say to each other: msgpack, each message behind its length."""

from __future__ import annotations

import socket
import struct
from typing import Any, TypeAlias

import msgspec

from rlhfless.messages import GradientsRequest, TrainRequest

_MAX_BYTES = 1 << 31


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A follower's first word."""

    rank: int
    token: str


class Meet(msgspec.Struct, tag=True, frozen=True):
    """Where torch's store is: a port of the leader's host."""

    port: int


class Build(msgspec.Struct, tag=True, frozen=True):
    """Have a learner at version 0. One of the two requests names its terms."""

    seed: int
    train: TrainRequest | None = None
    gradients: GradientsRequest | None = None


class Load(msgspec.Struct, tag=True, frozen=True):
    store: str
    job: str
    version: int


class Correct(msgspec.Struct, tag=True, frozen=True):
    store: str
    job: str
    version: int


class Update(msgspec.Struct, tag=True, frozen=True):
    store: str
    request: TrainRequest


class Begin(msgspec.Struct, tag=True, frozen=True):
    request: GradientsRequest


class Gather(msgspec.Struct, tag=True, frozen=True):
    """Help to make the tensors whole that the leader names, one after the other."""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """The group ends; ``well``: as it should."""

    well: bool


class Report(msgspec.Struct, tag=True, frozen=True):
    """How an order went; ``problem`` is an error's document."""

    problem: dict[str, Any] | None = None


class Going(msgspec.Struct, tag=True, frozen=True):
    """The follower's machine wants it to end: the group should, in order."""


Order: TypeAlias = Build | Load | Correct | Update | Begin | Gather
FromLeader: TypeAlias = Meet | Order | Leave
FromFollower: TypeAlias = Hello | Report | Going
_encoder = msgspec.msgpack.Encoder()
of_leader = msgspec.msgpack.Decoder(FromLeader).decode
of_follower = msgspec.msgpack.Decoder(FromFollower).decode


def send(connection: socket.socket, message: FromLeader | FromFollower) -> None:
    data = _encoder.encode(message)
    connection.sendall(struct.pack(">I", len(data)) + data)


def receive(connection: socket.socket) -> bytes | None:
    """None: the other side is gone."""
    try:
        head = _exactly(connection, 4)
        if head is None:
            return None
        (size,) = struct.unpack(">I", head)
        return None if size > _MAX_BYTES else _exactly(connection, size)
    except OSError:
        return None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(1 << 20, size - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)
