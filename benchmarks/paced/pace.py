"""How long what takes, and the clock that makes it take so long.

The times are those of Qwen2.5-7B, a rollout instance being one A100-80: an iteration of 11.1, 12.1
and 27.5 ms with 8, 32 and 256 rows of 1,024 tokens (kernels, measured by ai-dynamo/aiconfigurator),
to which a millisecond and a half of sampling and scheduling are added; prefill at half of the
dense peak (14 GFLOP a token); keys and values of 57,344 bytes a token. Bytes that really move are
1/256 of these, and so is the bandwidth: the seconds are those of a GPU's network, and two cores can
carry what sixteen instances move.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from prefix_cache.entry import Layout
from rlhfless.objects import ObjectStore

SCALE = 256
KV_LAYOUT = Layout(layers=1, heads=1, dim=56, dtype="float16")
"""224 bytes a token: 28 layers of 4 heads of 128, by ``SCALE``."""


@dataclass(frozen=True)
class Pace:
    """Seconds; of a token where the name says so.

    An iteration takes ``iteration_s + row_s * rows + context_s * tokens attended to``, prefill
    ``prefill_s`` a pass and ``prefill_token_s``; a weights pull ``pull_s`` whatever it reads. Keys
    and values move at ``bandwidth`` bytes/s (5 GB/s by ``SCALE``) after ``latency_s``. The training
    instance stands for a few nodes of eight accelerators; reward and reference for one.
    ``start_s``: from the process to a served call, as with a snapshot of a warm container.
    """

    iteration_s: float = 12.5e-3
    row_s: float = 20e-6
    context_s: float = 40e-9
    prefill_s: float = 5e-3
    prefill_token_s: float = 90e-6
    pull_s: float = 0.3
    bandwidth: float = 5e9 / SCALE
    latency_s: float = 2e-3
    train_s: float = 0.5
    train_token_s: float = 10e-6
    score_s: float = 20e-3
    score_token_s: float = 4e-6
    start_s: float = 1.5
    max_batch: int = 64
    kv_tokens: int = 131072


PACE = Pace()

CATCH_UP_S = 0.05
"""Work that begins so soon after other work begins, by the clock, when that ended: what a process
does in between is hidden behind an accelerator's queue, and a late wake-up delays nothing."""


@dataclass
class Lateness:
    """How well the clock was kept: ``late_s`` in all, of ``waits``; ``lost_s`` that were not caught
    up with; ``worst_s``."""

    waits: int = 0
    late_s: float = 0.0
    worst_s: float = 0.0
    lost_s: float = 0.0
    slept_s: float = 0.0


@dataclass
class Clock:
    """One accelerator: its work is done piece after piece."""

    lateness: Lateness = field(default_factory=Lateness)
    _free_s: float = 0.0

    def work(self, seconds: float) -> None:
        """Return when so much work is done, what is being done first."""
        now = time.monotonic()
        behind = now - self._free_s
        if behind > CATCH_UP_S:
            self._free_s = now
        self._free_s += seconds
        self.lateness.slept_s += seconds
        left = self._free_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._note(time.monotonic() - self._free_s)

    def idle(self) -> None:
        """It had nothing to do until now: what was waited for was no work of its own."""
        self._free_s = max(self._free_s, time.monotonic())

    def _note(self, late_s: float) -> None:
        self.lateness.waits += 1
        self.lateness.late_s += late_s
        self.lateness.worst_s = max(self.lateness.worst_s, late_s)
        if late_s > CATCH_UP_S:
            self.lateness.lost_s += late_s

    def take_lateness(self) -> Lateness:
        """Since the last time."""
        taken, self.lateness = self.lateness, Lateness()
        return taken


class PacedObjects(ObjectStore):
    """An object store behind a network link of ``pace``: what one instance reads and writes side by
    side shares the link. Objects cannot be mapped."""

    def __init__(self, url: str, pace: Pace) -> None:
        super().__init__(url)
        self._pace = pace
        self._lock = threading.Lock()
        self._free_s = 0.0

    def local_path(self, name: str) -> str | None:  # noqa: ARG002  (of any name)
        return None

    def get(self, name: str) -> bytes:
        began = time.monotonic()
        data = super().get(name)
        self._transfer(began, len(data))
        return data

    def put(self, name: str, data: bytes, *, durable: bool = False) -> None:
        began = time.monotonic()
        super().put(name, data, durable=durable)
        self._transfer(began, len(data))

    def _transfer(self, began: float, num_bytes: int) -> None:
        """Wait until a transfer that began then is through."""
        with self._lock:
            start = max(began, self._free_s)
            self._free_s = start + num_bytes / self._pace.bandwidth
            ends = self._free_s + self._pace.latency_s
        time.sleep(max(0.0, ends - time.monotonic()))
