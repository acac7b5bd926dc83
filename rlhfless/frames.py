"""Length-prefixed msgpack frames over a byte stream.

A frame is a 4-byte big-endian length and that many bytes of msgpack. ``FrameReader`` takes the
chunks of an HTTP body as they come, cut anywhere, and yields whole frames.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rlhfless.errors import TransientError
from rlhfless.messages import AnyFrame, Frame, Struct

MEDIA_TYPE = "application/vnd.rlhfless.frames"
MAX_FRAME_BYTES = 1 << 30

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)


def encode_frame(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


def encode_request(request: Struct) -> bytes:
    return _encoder.encode(request)


class FrameReader:
    """Incremental decoder; raises ``TransientError`` on bytes that are no frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[AnyFrame]:
        self._buffer += chunk
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_FRAME_BYTES:
                raise TransientError(f"the stream is corrupt: a frame of {size} bytes")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            try:
                yield _decoder.decode(body)
            except msgspec.DecodeError as error:
                raise TransientError(f"the stream is corrupt: {error}") from error

    def close(self) -> None:
        """Call at end of stream; raises if the peer stopped in the middle of a frame."""
        if self._buffer:
            raise TransientError("the stream broke off in the middle of a frame")
