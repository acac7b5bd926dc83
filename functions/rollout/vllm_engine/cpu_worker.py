"""What moves keys and values between vLLM's cache and its tiers where both are in main memory.

vLLM has this for GPUs, with streams and events; on a CPU it is a copy, done when it is asked for.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion


class CopyWorker(OffloadingWorker):
    """``caches``: a tensor [blocks, bytes] for each layer, and which of them each group of layers
    has. A block in ``region`` holds those of all layers, one after the other."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._groups = caches.group_data_refs
        self._device: list[Tensor] = [cache.tensor for cache in caches.tensors]
        self._host: list[Tensor] = [
            region.create_next_worker_view(cache.page_size_bytes) for cache in caches.tensors
        ]
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        assert isinstance(dst_spec, BlockIDsLoadStoreSpec)
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        assert isinstance(src_spec, BlockIDsLoadStoreSpec)
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Everything has been done by now."""

    def shutdown(self) -> None:
        self._device, self._host = [], []
        self._region.cleanup()

    def _copy(
        self, job_id: int, cached: GPULoadStoreSpec, kept: BlockIDsLoadStoreSpec, *, store: bool
    ) -> bool:
        began = time.perf_counter()
        moved = start = 0
        for refs, size in zip(self._groups, cached.group_sizes, strict=True):
            blocks = torch.from_numpy(cached.block_ids[start : start + size]).long()
            chunks = torch.from_numpy(kept.block_ids[start : start + size]).long()
            start += size
            for ref in refs:
                num_bytes = ref.page_size_bytes
                device = self._device[ref.tensor_idx][:, :num_bytes]
                host = self._host[ref.tensor_idx][:, :num_bytes]
                if store:
                    host[chunks] = device[blocks]
                else:
                    device[blocks] = host[chunks]
                moved += size * num_bytes
        seconds = time.perf_counter() - began
        self._finished.append(TransferResult(job_id, True, moved, seconds))
        return True
