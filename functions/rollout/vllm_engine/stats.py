"""What vLLM tells of itself, added up: for ``RolloutDone``, ``Progress`` and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from functions.readings import Reading


@dataclass
class EngineStats:
    """Counters since the instance began, over restarts of its engine; written by one thread, read
    anywhere. Prompt tokens by where their keys and values came from: ``computed``, ``local`` (the
    engine's own cache), ``external`` (the connector). ``ttft_s``, ``tpot_s`` and ``update_s`` are
    sums, with their counts; an update that failed counts in ``failed_updates`` alone.

    ``asked``: samples in vLLM's hands. It tells ``running``, ``waiting`` and ``kv_usage`` with its
    iterations, and has none after the last sample was aborted."""

    iterations: int = 0
    asked: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    computed: int = 0
    local: int = 0
    external: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    ttft_s: float = 0.0
    first_tokens: int = 0
    tpot_s: float = 0.0
    later_tokens: int = 0
    kv_blocks: int = 0
    block_tokens: int = 0
    starts: int = 0
    updates: int = 0
    update_s: float = 0.0
    update_bytes: int = 0
    failed_updates: int = 0

    @property
    def kv_capacity(self) -> int:
        """Tokens whose keys and values fit."""
        return self.kv_blocks * self.block_tokens

    @property
    def kv_tokens(self) -> int:
        return round(self.kv_usage * self.kv_capacity) if self.asked else 0

    def updated(self, seconds: float, size: int) -> None:
        self.updates += 1
        self.update_s += seconds
        self.update_bytes += size

    def readings(self) -> Iterator[Reading]:
        """For ``functions.readings.Measured``."""

        def counter(name: str, text: str, value: float, **labels: str) -> Reading:
            return Reading(f"engine_{name}", text, value, "counter", labels=labels)

        running, waiting = min(self.running, self.asked), min(self.waiting, self.asked)
        usage = self.kv_usage if self.asked else 0.0
        yield Reading("engine_running", "Samples in the engine's batch", running)
        yield Reading("engine_waiting", "Samples that wait for room in it", waiting)
        yield Reading("engine_kv_usage", "Share of the KV cache in use, 0 to 1", usage)
        yield Reading(
            "engine_kv_capacity_tokens", "Tokens that the KV cache holds", self.kv_capacity
        )
        yield counter("iterations", "Passes through the model", self.iterations)
        sources = {"computed": self.computed, "local": self.local, "external": self.external}
        for source, tokens in sources.items():
            yield counter(
                "prompt_tokens",
                "Prompt tokens, by where their keys and values came from: the model, the engine's "
                "own cache, outside",
                tokens,
                source=source,
            )
        yield counter("preemptions", "Samples thrown out for memory", self.preemptions)
        yield counter("drafts", "Drafts that were verified", self.drafts)
        yield counter("draft_tokens", "Tokens in them", self.draft_tokens)
        yield counter("accepted_tokens", "Of these, accepted", self.accepted_tokens)
        yield Reading(
            "engine_ttft_seconds",
            "From a sample's arrival in the engine to its first token",
            self.ttft_s,
            "summary",
            self.first_tokens,
        )
        yield Reading(
            "engine_tpot_seconds",
            "Between two tokens of a sample",
            self.tpot_s,
            "summary",
            self.later_tokens,
        )
        yield Reading(
            "engine_weight_update_seconds",
            "Bringing the engine to a version of the weights",
            self.update_s,
            "summary",
            self.updates,
        )
        yield counter("weight_update_bytes", "Bytes of versions that were read", self.update_bytes)
        yield counter("weight_update_failures", "Versions not to be had", self.failed_updates)
        yield counter("starts", "Starts of the engine; deaths bring more", self.starts)
