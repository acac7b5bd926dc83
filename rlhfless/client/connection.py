"""Where the service is and who asks: arguments, else the environment, else what lies here.

RLHFLESS_URL       default http://127.0.0.1:8000
RLHFLESS_API_KEY   for a service on this machine, default the admin key that its first start
                   left in rlhfless-data/admin-key
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rlhfless.errors import UserError, of_os_error

DEFAULT_URL = "http://127.0.0.1:8000"
ADMIN_KEY_FILE = os.path.join("rlhfless-data", "admin-key")


@dataclass(frozen=True)
class Connection:
    """``key`` None: only what needs none may be asked. ``local``: on this machine."""

    url: str
    key: str | None
    local: bool


def connection(
    url: str | None = None, key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Raises ``UserError`` for a URL that is none."""
    url = (url or environ.get("RLHFLESS_URL") or DEFAULT_URL).strip()
    local = _is_local(url)
    key = key or environ.get("RLHFLESS_API_KEY") or (_left_here() if local else None)
    return Connection(url, key.strip() if key else None, local)


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port  # raises where it is no number
    except ValueError as error:
        raise UserError(f"{url!r} is no URL: {error}", param="RLHFLESS_URL") from error
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(
            f"{url!r} is no URL of a service; write e.g. {DEFAULT_URL}", param="RLHFLESS_URL"
        )
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _left_here() -> str | None:
    try:
        with open(ADMIN_KEY_FILE, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise of_os_error(f"cannot read {ADMIN_KEY_FILE}", error) from error
