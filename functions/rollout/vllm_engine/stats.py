"""What vLLM tells of itself, added up: for ``RolloutDone``, ``Progress`` and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


@dataclass
class EngineStats:
    """Counters since the engine began; written in its loop, read anywhere. Prompt tokens by where
    their keys and values came from: ``computed``, ``local`` (the engine's own cache), ``external``
    (the connector). ``ttft_s`` and ``tpot_s`` are sums, with their counts."""

    iterations: int = 0
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
    kv_blocks: int = field(default=0)
    block_tokens: int = field(default=0)

    @property
    def kv_capacity(self) -> int:
        """Tokens whose keys and values fit."""
        return self.kv_blocks * self.block_tokens

    @property
    def kv_tokens(self) -> int:
        return round(self.kv_usage * self.kv_capacity)


class StatsLogger(StatLoggerBase):
    def __init__(self, stats: EngineStats, config: VllmConfig, engine_index: int = 0) -> None:
        del engine_index
        self._stats = stats
        self._config = config

    def log_engine_initialized(self) -> None:
        cache = self._config.cache_config
        self._stats.kv_blocks = cache.num_gpu_blocks or 0
        self._stats.block_tokens = cache.block_size

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        del mm_cache_stats, engine_idx
        stats = self._stats
        if scheduler_stats is not None:
            stats.iterations += 1
            stats.running = scheduler_stats.num_running_reqs
            stats.waiting = scheduler_stats.num_waiting_reqs
            stats.kv_usage = scheduler_stats.kv_cache_usage
            drafting = scheduler_stats.spec_decoding_stats
            if drafting is not None:
                stats.drafts += drafting.num_drafts
                stats.draft_tokens += drafting.num_draft_tokens
                stats.accepted_tokens += drafting.num_accepted_tokens
        if iteration_stats is not None:
            prompts = iteration_stats.prompt_token_stats
            stats.computed += prompts.computed
            stats.local += prompts.local_cache_hit
            stats.external += prompts.external_kv_transfer
            stats.preemptions += iteration_stats.num_preempted_reqs
            stats.ttft_s += sum(iteration_stats.time_to_first_tokens_iter)
            stats.first_tokens += len(iteration_stats.time_to_first_tokens_iter)
            stats.tpot_s += sum(iteration_stats.inter_token_latencies_iter)
            stats.later_tokens += len(iteration_stats.inter_token_latencies_iter)
