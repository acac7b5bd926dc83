"""What the reward function and its user-code workers say to each other.

Messages are length-prefixed msgpack over socket pairs, never pickle. Two channels exist per worker:
``calls`` (requests and replies) and ``control``. On ``control`` only the supervisor speaks, once,
when the worker has ended (``Exited``); the other direction matters by its end alone: when the
reward function closes it or dies, the supervisor kills the worker and everything it started.

This module stays light: it is imported by the worker before any user code.
"""

from __future__ import annotations

import socket
from typing import Any, TypeAlias

import msgspec

MAX_MESSAGE_BYTES = 1 << 30
NO_SAMPLE = -1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the messages; the tag is the class name."""


class Load(Message, frozen=True, kw_only=True):
    """First message to a worker: which function to load. ``memory_bytes`` 0 means no limit."""

    target: str
    memory_bytes: int


class Score(Message, frozen=True, kw_only=True):
    """One call of the function; the lists run in parallel. ``step`` is the job's step."""

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    step: int


class Started(Message, frozen=True, kw_only=True):
    """The worker runs. ``exposed`` says why it could not be cut off the network, None if it is (or
    was not asked to be)."""

    pid: int
    exposed: str | None


class Loaded(Message, frozen=True, kw_only=True):
    """The function is imported. ``path`` is its source file, "" where it has none."""

    path: str


class Scores(Message, frozen=True, kw_only=True):
    values: list[float | None]


class Failed(Message, frozen=True, kw_only=True):
    """User code is at fault. ``what`` completes the sentence "reward 'x' ...".

    ``sample`` is the index of the sample at fault or ``NO_SAMPLE``; ``trace`` the user's part of
    the traceback; ``exhausted`` that the memory limit was hit, after which the worker is replaced.
    """

    what: str
    sample: int = NO_SAMPLE
    hint: str | None = None
    trace: str | None = None
    exhausted: bool = False


class Exited(Message, frozen=True, kw_only=True):
    """The worker ended with this wait status (``os.WIFSIGNALED`` and so on)."""

    status: int


ToWorker: TypeAlias = Load | Score
Reply: TypeAlias = Started | Loaded | Scores | Failed

_encoder = msgspec.msgpack.Encoder()
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
exited_decoder = msgspec.msgpack.Decoder(Exited)


def pack(message: Message) -> bytes:
    """A whole message as it goes over the socket."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


def unpack_from(buffer: bytearray) -> bytes | None:
    """Cut the first whole message body off ``buffer``; None while it is not complete.

    Raises ``ValueError`` for a length no message has: something else wrote to the socket.
    """
    if len(buffer) < 4:
        return None
    size = int.from_bytes(buffer[:4], "big")
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes")
    if len(buffer) < 4 + size:
        return None
    body = bytes(buffer[4 : 4 + size])
    del buffer[: 4 + size]
    return body


def receive(sock: socket.socket) -> bytes | None:
    """Block for one message body; None when the peer has closed the socket."""
    buffer = bytearray()
    while (body := unpack_from(buffer)) is None:
        chunk = sock.recv(1 << 20)
        if not chunk:
            return None
        buffer += chunk
    return body
