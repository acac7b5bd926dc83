"""Which part of a file a request asks for (RFC 9110, section 14)."""

from __future__ import annotations

import re

from rlhfless.errors import UserError

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class RangeError(UserError):
    title = "Range not satisfiable"
    status = 416


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """``[start, end)`` of a file of ``size`` bytes; None: all of it, also where the header asks for
    several parts or for what nobody understands. Raises ``RangeError`` for a part that lies outside
    of the file."""
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:  # the last so many bytes
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return None
    if start >= end:
        raise RangeError(f"the file has {size} bytes", param="Range")
    return start, end
