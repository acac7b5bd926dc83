"""What vLLM's core has moved between its memory and the object store, told to the engine's side.

Datagrams of msgpack over a Unix socket in Linux's abstract name space: nothing is left on a disk
when either side is killed. A receipt that is lost, because nobody reads, costs a number, or a
prefill the wait for it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time

import msgspec

SEND_S = 1.0
_MOST_BYTES = 1 << 16


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of ``call``, since its last receipt. ``loads`` moved ``loaded`` blocks of ``loaded_bytes`` in
    ``load_s`` seconds; likewise what was published. ``present``: blocks that were there already.
    ``failed``: blocks neither loaded nor stored though they should have been. ``ended``: requests
    whose blocks are all accounted for."""

    call: str
    loads: int = 0
    loaded: int = 0
    loaded_bytes: int = 0
    load_s: float = 0.0
    published: int = 0
    published_bytes: int = 0
    publish_s: float = 0.0
    present: int = 0
    failed: int = 0
    ended: int = 0

    def __add__(self, other: Receipt) -> Receipt:
        names = self.__struct_fields__[1:]
        return Receipt(self.call, *(getattr(self, n) + getattr(other, n) for n in names))


class Receipts:
    """Those that arrive at ``address``, by call."""

    def __init__(self) -> None:
        self.address = f"rlhfless-kv-{secrets.token_hex(12)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(_name(self.address))
        self._sums: dict[str, Receipt] = {}
        self._arrived = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="kv-receipts", daemon=True)
        self._thread.start()

    def begin(self, call: str) -> None:
        """Keep what comes for a call, until ``end``; what comes later is nobody's."""
        with self._arrived:
            self._sums[call] = Receipt(call)

    def so_far(self, call: str) -> Receipt:
        with self._arrived:
            return self._sums[call]

    def wait(self, call: str, ended: int, stall_s: float) -> Receipt:
        """Until ``ended`` requests have been accounted for, or nothing has come for ``stall_s``
        seconds."""
        with self._arrived:
            found = self._sums[call]
            until_s = time.monotonic() + stall_s
            while found.ended < ended and (left_s := until_s - time.monotonic()) > 0:
                self._arrived.wait(left_s)
                if self._sums[call] is not found:
                    found = self._sums[call]
                    until_s = time.monotonic() + stall_s
            return found

    def end(self, call: str) -> None:
        with self._arrived:
            self._sums.pop(call, None)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(Receipt)
        while not self._closed:
            data = self._socket.recv(_MOST_BYTES)
            try:
                receipt = decoder.decode(data)
            except msgspec.MsgspecError:
                continue  # nothing, at the end, or from somebody who guessed the name
            with self._arrived:
                if receipt.call in self._sums:
                    self._sums[receipt.call] += receipt
                    self._arrived.notify_all()


class ReceiptSender:
    """The other end; ``send`` may wait up to ``SEND_S``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_S)

    def send(self, address: str, receipt: Receipt) -> None:
        # Whoever asked has gone, or does not read: it has no use for the receipt either.
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendto(msgspec.msgpack.encode(receipt), _name(address))

    def close(self) -> None:
        self._socket.close()


def _name(address: str) -> str:
    return "\0" + address
