"""Keeps a tracker's process on the public internet: its libraries follow what a URL of a user's
leads to, redirects included, and must not be led into the operator's own network."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from controller.service.urls import is_global


def guard_addresses(allowed_hosts: Collection[str]) -> None:
    """From now on this process resolves no host to an address that is not global, but for those
    that the operator allows. Every Python client asks here, for addresses in figures too."""
    resolve = socket.getaddrinfo

    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        found = resolve(host, *args, **kwargs)
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in allowed_hosts:
            for *_, address in found:
                if not is_global(str(address[0])):
                    raise PermissionError(f"{name} is not a host of the public internet")
        return found

    socket.getaddrinfo = guarded
