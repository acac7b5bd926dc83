"""vLLM's KV offloading, set up for the object store: what its core makes of our configuration."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
from typing import Any

import torch
import vllm
from vllm.config import KVTransferConfig
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from functions.rollout.vllm_engine.cpu_worker import CopyWorker
from prefix_cache.blocks import layout_name

CPU_HOST_BYTES = 256 << 20
GPU_HOST_BYTES = 4 << 30
"""Of main memory, for blocks on their way between accelerator and object store."""
LEAST_TOKENS = 2048
"""With room for fewer, nothing is stored or loaded at all."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  where vLLM has them
_SHARE = 4
"""Of the shared memory that is free, an instance takes one part in so many at most."""
_log = logging.getLogger(__name__)


def kv_transfer_config(accelerator: str, token_bytes: int) -> KVTransferConfig | None:
    """For a model whose keys and values take ``token_bytes`` a token; None where there is too
    little shared memory (a container's default is 64 MB)."""
    least = LEAST_TOKENS * token_bytes
    wanted = max(least, CPU_HOST_BYTES if accelerator == "cpu" else GPU_HOST_BYTES)
    free = shutil.disk_usage(_SHARED_MEMORY).free // _SHARE if _has_shared_memory() else 0
    if free < least:
        _log.warning(
            "keys and values of prefixes are neither stored nor loaded: that takes %d MB of %s, "
            "where %d may be used",
            *(least >> 20, _SHARED_MEMORY, free >> 20),
        )
        return None
    host_bytes = min(free, wanted)
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": StoreOffloadingSpec.__name__,
            "spec_module_path": __name__,
            "cpu_bytes_to_use": host_bytes,
        },
    )


def host_bytes_of(config: KVTransferConfig) -> int:
    """What ``kv_transfer_config`` has decided."""
    return int(config.kv_connector_extra_config["cpu_bytes_to_use"])


def _has_shared_memory() -> bool:
    return os.path.isdir(_SHARED_MEMORY)


class StoreOffloadingSpec(TieringOffloadingSpec):
    """vLLM's tiers with the object store below; on CPUs, too."""

    num_chunks: int
    _worker: OffloadingWorker | None

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.num_chunks = max(self.num_chunks, 1)  # a region of nothing cannot be mapped
        self.secondary_tier_configs = [
            {
                "type": "ObjectTier",
                "module_path": "functions.rollout.vllm_engine.tier",
                "layout": _layout(config),
            }
        ]

    def get_manager(self) -> OffloadingManager:
        manager = super().get_manager()
        # The scheduler comes after all workers, so everybody has mapped the file: without its name
        # the memory goes with the processes, however they end.
        region = self._scheduler_mmap
        if region is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(region.mmap_path)
            region._creator = False
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not current_platform.is_cpu():
            worker = super().get_worker(kv_caches)
            _leave_name(getattr(worker, "_mmap_region", None))
            return worker
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            _leave_name(region)
            self._worker = CopyWorker(kv_caches, region)
        return self._worker


def _leave_name(region: SharedOffloadRegion | None) -> None:
    """The file's name is the manager's to remove."""
    if region is not None:
        region._creator = False


def _layout(config: OffloadingConfig) -> str:
    """All that says how a block's bytes are to be read; blocks computed by another kind of device
    are left alone, too, since they differ a little."""
    return layout_name(
        vllm.__version__,
        _device(),
        config.model.dtype,
        config.kv_cache_layout,
        config.worker_kv_bytes_per_block,
        config.cache.tokens_per_hash,
        config.cache.blocks_per_chunk,
        [(group.group_id, group.tokens_per_block, group.layer_names) for group in config.groups],
        (config.parallel.tp_size, config.parallel.pp_size, config.parallel.world_size),
        (config.replicated_layout, config.canonical_layout),
    )


def _device() -> Any:
    if current_platform.is_cpu():
        cpu = torch.backends.cpu.get_cpu_capability()
        return platform.machine(), cpu, torch.cpu._is_amx_tile_supported()
    return current_platform.get_device_name()
