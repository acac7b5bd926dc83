"""Where vLLM leaves its statistics: after every iteration, in the runtime's loop."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from functions.rollout.vllm_engine.stats import EngineStats


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
