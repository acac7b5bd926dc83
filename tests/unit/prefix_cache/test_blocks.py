"""Names of another engine's blocks."""

import numpy as np
import pytest

from controller.garbage import collect_job
from prefix_cache.blocks import block_header, block_name, layout_name
from prefix_cache.entry import BadEntryError, decode_entry, encode_entry
from prefix_cache.evict import evict
from prefix_cache.keys import KvIdentity
from rlhfless.objects import ObjectStore

IDENTITY = KvIdentity("m", "job", 3, "float32")
BLOCK = b"\x01\x02"


def test_a_block_is_where_its_version_is_collected() -> None:
    store = ObjectStore("memory://blocks")
    old, new = (KvIdentity("m", "job", version, "float32") for version in (3, 4))
    for identity in (old, new):
        store.put(block_name(identity, "layout", BLOCK), b"data")
    assert evict(store, "job", keep_version=4, max_bytes=100).entries == 1
    assert store.list("kv/job") == [block_name(new, "layout", BLOCK)]
    collect_job(store, "job")
    assert not store.list("kv/job")


def test_layouts_are_told_apart_by_any_fact() -> None:
    assert layout_name("a", (1, 2)) == layout_name("a", (1, 2))
    names = {layout_name(*facts) for facts in (("a", 1), ("a", 2), ("b", 1), ("a", "1"), ("a",))}
    assert len(names) == 5
    assert block_name(IDENTITY, "one", BLOCK) != block_name(IDENTITY, "two", BLOCK)


def test_a_block_is_read_only_as_what_it_was_written_as() -> None:
    data = np.arange(200, dtype=np.uint8)
    header = block_header(IDENTITY, "layout", BLOCK, 200)
    entry = np.frombuffer(encode_entry(header, data), dtype=np.uint8)
    np.testing.assert_array_equal(decode_entry(entry, header), data)
    others = [
        block_header(KvIdentity("m", "job", 4, "float32"), "layout", BLOCK, 200),
        block_header(IDENTITY, "other", BLOCK, 200),
        block_header(IDENTITY, "layout", b"\x01\x03", 200),
        block_header(IDENTITY, "layout", BLOCK, 199),
    ]
    for other in others:
        with pytest.raises(BadEntryError):
            decode_entry(entry, other)
