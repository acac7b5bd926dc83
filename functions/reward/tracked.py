"""Which sample was user code looking at? Lists that note, in shared memory, the index last read.

The worker hands these to the user's function in place of plain lists. The reward function reads the
notes from its side of the shared memory, so a sample can be named even when user code hangs or dies
of a segmentation fault. Each list has a slot of its own; the first slot that points at a sample
wins, in the order of ``SLOTS`` (completions first: columns are often read as constants).

A list that has been iterated to its end points at nothing: a function that copies everything before
it starts to score is then not accused with the last sample. For exceptions ``sample_in_traceback``
finds the sample there as well, through the arguments of the frames that raised.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, TypeVar, overload

from functions.reward.wire import NO_SAMPLE

T = TypeVar("T")
SLOTS = ("completions", "completion_ids", "prompts", "columns")
SHARED_BYTES = 8 * len(SLOTS)


class TrackedList(list[T]):
    """A list of one entry per sample. Copies, slices and pickles of it are plain lists."""

    __slots__ = ("_notes", "_slot")

    def __init__(self, items: Sequence[T], notes: memoryview, slot: int) -> None:
        super().__init__(items)
        self._notes = notes
        self._slot = slot

    def __iter__(self) -> Iterator[T]:
        notes, slot = self._notes, self._slot
        for index, item in enumerate(super().__iter__()):
            notes[slot] = index
            yield item
        notes[slot] = NO_SAMPLE

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[T]: ...
    def __getitem__(self, key: SupportsIndex | slice, /) -> T | list[T]:
        if isinstance(key, slice):
            return super().__getitem__(key)
        index = key.__index__()
        self._notes[self._slot] = index if index >= 0 else len(self) + index
        return super().__getitem__(index)

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Any:
        return (list, (super().__getitem__(slice(None)),))


def clear(notes: memoryview) -> None:
    for slot in range(len(SLOTS)):
        notes[slot] = NO_SAMPLE


def last_sample(notes: memoryview, num_samples: int) -> int:
    """The sample user code read last, or ``NO_SAMPLE``."""
    return next((i for i in notes if 0 <= i < num_samples), NO_SAMPLE)


def sample_in_traceback(
    traceback: types.TracebackType | None, samples: Sequence[Sequence[Any]]
) -> int:
    """The sample whose very object (completion, prompt ...) is a local of an inner raising frame.

    Serves functions that score with threads or ``asyncio.gather``, where reading is long over when
    an error comes. The outermost frame is left out: there a loop's variable outlives its loop.
    """
    frames: list[types.FrameType] = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    owners = _unique_owners(samples)
    for frame in reversed(frames[1:]):
        for value in frame.f_locals.values():
            if id(value) in owners:
                return owners[id(value)]
    return NO_SAMPLE


def _unique_owners(samples: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Sample index by object id, of texts and containers that belong to one sample only."""
    owners: dict[int, int] = {}
    shared: set[int] = set()
    for items in samples:
        for index, item in enumerate(list(items)):
            if not isinstance(item, str | list | dict) or len(item) < 2:
                continue  # Python shares short strings between whoever has them
            if owners.setdefault(id(item), index) != index:
                shared.add(id(item))
    return {key: index for key, index in owners.items() if key not in shared}
