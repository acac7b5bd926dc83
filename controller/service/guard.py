"""Slows down whoever tries keys that are not valid.

Nobody guesses a key (256 random bits); but each attempt asks Redis and is written to the audit log,
and one address must not fill either. An address has a bucket of attempts that refills with time;
when it is empty, unknown keys are refused unasked. A key that was valid here of late still passes:
many users may come from one address (a proxy, an office), and one of them must not lock out the
others.

All of this is one replica's own memory: several replicas allow so many times as many attempts.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from controller.service.refusals import TooManyRequestsError

K = TypeVar("K")
V = TypeVar("V")

BURST = 20
"""Attempts that an address may make at once."""
REFILL_S = 2.0
"""Seconds until an address may try once more."""
MAX_ADDRESSES = 10_000
MAX_KEYS = 1024
_V6_NETWORK = 64
"""Whoever has one IPv6 address usually has all of its /64."""


class Guard:
    """``now``: seconds of any clock that does not go back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By network: the attempts left when it was last counted, and when that was."""
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        """Digests of keys that were valid when they were last used, the newest last."""

    def check(self, address: str | None, key: str) -> None:
        """Before a key is looked up. Raises ``TooManyRequestsError``."""
        left = self._left(_network(address))
        if left >= 1 or _digest(key) in self._valid:
            return
        raise TooManyRequestsError(
            "too many attempts with keys that are not valid",
            retry_after_s=max(1, math.ceil((1 - left) * REFILL_S)),
        )

    def passed(self, key: str) -> None:
        """The key was valid."""
        _keep(self._valid, _digest(key), None, MAX_KEYS)

    def failed(self, address: str | None, key: str) -> None:
        """It was not."""
        self._valid.pop(_digest(key), None)
        network = _network(address)
        left = max(0.0, self._left(network) - 1)
        _keep(self._buckets, network, (left, self._now()), MAX_ADDRESSES)

    def _left(self, network: str) -> float:
        left, at = self._buckets.get(network, (float(BURST), 0.0))
        return min(float(BURST), left + (self._now() - at) / REFILL_S)


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _network(address: str | None) -> str:
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return "unknown"  # a Unix socket, a test's client
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed), _V6_NETWORK), strict=False))
    return str(parsed)
