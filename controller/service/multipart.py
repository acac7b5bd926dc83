"""An upload as browsers and curl send it (multipart/form-data), read piece by piece.

Starlette's own parser spools a file of any size before a route sees it; here a file is bounded and
hashed while it comes in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from rlhfless.errors import TransientError, UserError

MAX_FIELD_BYTES = 4096
MAX_PARTS = 8
SILENCE_S = 60.0
"""Without a byte, a sender is given up."""


class Form:
    """``fields``: the parts without a file; ``filename``: of the part ``file``, None: it was not
    there."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None


async def read_form(request: Request, write: Callable[[bytes], None]) -> Form:
    """Read the request's body to its end; the content of its part ``file`` goes to ``write`` (in a
    thread). Raises ``UserError`` for what is no such form, ``TransientError`` for a sender that
    goes away, and what ``write`` raises."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise UserError("the upload is no multipart/form-data with a boundary")
    parts = _Parts(write)
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]
        stream = aiter(request.stream())
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    piece = await anext(stream)
            except StopAsyncIteration:
                break
            except TimeoutError:
                raise TransientError(f"the sender was silent for {SILENCE_S:g} s") from None
            except ClientDisconnect:
                raise TransientError("the sender went away in the middle") from None
            if piece:
                await asyncio.to_thread(parser.write, piece)
        parser.finalize()
    except FormParserError as error:
        raise UserError(f"the upload is no whole multipart/form-data: {error}") from error
    if not parts.ended:
        raise UserError("the upload ends before its last boundary")
    return parts.form


class _Parts:
    """What the parser calls while it reads."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.form = Form()
        self.ended = False
        self._write = write
        self._count = 0
        self._header = self._value = b""
        self._disposition = b""
        self._name = ""
        self._field: bytearray | None = None

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise UserError(f"an upload has at most {MAX_PARTS} parts")
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise UserError("a part of the upload has no name")
        self._name = options[b"name"].decode(errors="replace")
        if self._name in self.form.fields or (
            self._name == "file" and self.form.filename is not None
        ):
            raise UserError(f"the upload has {self._name[:80]!r} twice", param=self._name[:80])
        if self._name == "file":
            self.form.filename = options.get(b"filename", b"").decode(errors="replace")
            self._field = None
        else:
            self._field = bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._write(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > MAX_FIELD_BYTES:
            raise UserError(f"a field has at most {MAX_FIELD_BYTES} bytes", param=self._name[:80])

    def _part_end(self) -> None:
        if self._field is not None:
            self.form.fields[self._name] = self._field.decode(errors="replace")

    def _end(self) -> None:
        self.ended = True
