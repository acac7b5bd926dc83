"""A ``Home`` for a controller's processes, or words for a person who has no room for one."""

from __future__ import annotations

import errno

from rlhfless.errors import CapacityError, RlhflessError, of_os_error
from rlhfless.lifeline import Home


def open_home() -> Home:
    """Blocks for some milliseconds. Raises ``of_os_error``'s families."""
    try:
        return Home()
    except OSError as error:
        raise cannot_make_temporary_folder(error) from error


def cannot_make_temporary_folder(error: OSError) -> RlhflessError:
    """``error``, with what to do about it."""
    hint = "set TMPDIR to a folder that you may write to and that has some room"
    if error.errno == errno.ENOENT and error.filename is None:  # tempfile has tried them all
        return CapacityError(str(error.strerror), hint=hint)
    where = f" {error.filename}" if error.filename else ""
    told = of_os_error(f"cannot make a temporary folder{where}", error)
    told.hint = hint
    return told
