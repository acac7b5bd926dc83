"""What all wire messages share: their base, who is called, and frames any call may send."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

FunctionName: TypeAlias = Literal["rollout", "reward", "reference", "training"]
FUNCTION_NAMES: tuple[FunctionName, ...] = ("rollout", "reward", "reference", "training")


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every wire value."""


class Frame(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the union of frames; the tag is the class name."""


class CallInfo(Struct, frozen=True, kw_only=True):
    """Identity and limits of a call.

    ``id`` is unique to the work, not to the attempt: a repeat with the same id returns the first
    result. ``deadline_s`` counts seconds from the moment the function receives the call.
    ``store`` is the URL of the object store that versions, batches and results live in.
    """

    id: str
    job: str
    step: int
    deadline_s: float
    store: str


class ModelRef(Struct, frozen=True, kw_only=True):
    """A model at a version. Version 0 is ``path`` as it lies; later ones are pulled from the store.

    ``path`` is a folder or a Hugging Face name; ``dtype`` one of ``float32 | bfloat16 | float16``.
    """

    path: str
    job: str
    version: int
    dtype: str = "float32"


class Heartbeat(Frame, frozen=True, kw_only=True):
    """The call is alive; ``busy_s`` seconds of work so far. ``load_s`` of them, told at the end of
    a call, went into loading what a warm instance has already."""

    busy_s: float = 0.0
    load_s: float = 0.0


class Drain(Frame, frozen=True, kw_only=True):
    """The instance is going away (``reason``, e.g. ``SIGTERM``); the stream ends soon."""

    reason: str


class Problem(Frame, frozen=True, kw_only=True):
    """The call failed: the members of an RFC 9457 problem document."""

    problem: dict[str, Any]


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without those that are no number: JSON has no infinity, and a reader of a step's
    record must not stumble over one."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
