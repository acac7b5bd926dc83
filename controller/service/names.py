"""What names of the service may look like. They become parts of Redis keys, so nothing else may."""

from __future__ import annotations

import re

from rlhfless.errors import UserError

_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
MAX_LABEL_CHARS = 100


def check_tenant(name: str) -> str:
    """``name`` itself. Raises ``UserError`` unless it is 1 to 63 of ``a-z 0-9 -``."""
    if not _TENANT.fullmatch(name):
        raise UserError(
            f"{name[:80]!r} cannot be a tenant's name",
            param="tenant",
            hint="use 1 to 63 of a-z, 0-9 and - (not first or last)",
        )
    return name


def check_label(label: str) -> str:
    """A name for people: ``label`` itself. Raises ``UserError`` if it is empty, longer than
    ``MAX_LABEL_CHARS`` or not printable."""
    if not label.strip() or len(label) > MAX_LABEL_CHARS or not label.isprintable():
        raise UserError(
            f"a name has 1 to {MAX_LABEL_CHARS} printable characters, got {label[:80]!r}",
            param="name",
        )
    return label
