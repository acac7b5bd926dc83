"""A stored segment as bytes, and how it is read with distrust.

    offset  bytes
    0       8      magic, which names the format's number
    8       4      CRC-32 of the header and the data, little-endian
    12      4      length of the header, little-endian
    16      ...    header: msgpack of ``Header``
    ...            zeros up to a multiple of 64, so that the data is aligned
    ...            data: the array [layers, 2, heads, tokens, dim], keys then values; little-endian

CRC-32 tells damage, not malice, and is two to three times as fast as any cryptographic hash here
(2 GB/s against 0.75): an entry is read in place of computing, so every pass over it counts.
"""

from __future__ import annotations

import struct
import zlib
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefix_cache.keys import FORMAT, KvIdentity

Bytes: TypeAlias = NDArray[np.uint8]

_MAGIC = b"RLHF-KV%d" % FORMAT
_HEAD = struct.Struct("<8sII")
_ALIGN = 64
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}


class BadEntryError(Exception):
    """The bytes are not the entry that was asked for: damaged, cut short, or another's."""


class Layout(msgspec.Struct, frozen=True):
    """What a model caches for a token: keys and values of ``layers`` x ``heads`` x ``dim``."""

    layers: int
    heads: int
    dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.dim * _ITEM_BYTES[self.dtype]

    def shape(self, tokens: int) -> list[int]:
        return [self.layers, 2, self.heads, tokens, self.dim]


class Header(msgspec.Struct, frozen=True):
    """Describes an entry to whoever finds it. ``dtype`` uint8: bytes as another engine has them
    (``blocks``)."""

    key: str
    identity: KvIdentity
    shape: list[int]
    dtype: str


def encode_entry(header: Header, data: Bytes) -> bytes:
    head = msgspec.msgpack.encode(header)
    padding = bytes(-(_HEAD.size + len(head)) % _ALIGN)
    checksum = zlib.crc32(data.data, zlib.crc32(head))
    return b"".join((_HEAD.pack(_MAGIC, checksum, len(head)), head, padding, data.data))


def decode_entry(entry: Bytes, wanted: Header) -> Bytes:
    """The data of an entry, as a view. Raises ``BadEntryError`` unless it is whole and the one
    that is wanted."""
    if len(entry) < _HEAD.size:
        raise BadEntryError(f"an entry of {len(entry)} bytes")
    magic, checksum, length = _HEAD.unpack_from(entry.data)
    begin = _HEAD.size + length
    begin += -begin % _ALIGN
    if magic != _MAGIC or begin > len(entry):
        raise BadEntryError("no entry of this format")
    head = entry[_HEAD.size : _HEAD.size + length].tobytes()
    data = entry[begin:]
    if zlib.crc32(data.data, zlib.crc32(head)) != checksum:
        raise BadEntryError("the checksum does not match")
    try:
        found = msgspec.msgpack.decode(head, type=Header)
    except msgspec.MsgspecError as error:
        raise BadEntryError(f"the header is unreadable: {error}") from error
    if found != wanted:
        raise BadEntryError(f"{found} was found in place of {wanted}")
    if len(data) != num_bytes(wanted):
        raise BadEntryError(f"{len(data)} bytes of data")
    return data


def num_bytes(header: Header) -> int:
    size = _ITEM_BYTES[header.dtype]
    for length in header.shape:
        size *= length
    return size
