"""How much an engine takes on at once: by the request, and by the memory there is."""

from __future__ import annotations

import os
from typing import Any

import torch

from functions.rollout.admission import Limits
from rlhfless.messages import RolloutRequest

MAX_BATCH = 256
"""Samples together where the request sets no bound. On a CPU matrix products gain little beyond 64
rows, but each iteration saved still is one less; 256 samples at once took 0.75 of the time of 64
with refills (quick-start model, long tail)."""

MEMORY_SHARE = 0.4
"""Of the memory that is free: buffers grow by half and are copied while they grow."""


PREFIX_BYTES = 512 << 20
"""Most memory for prefixes that outlive a call; a twentieth of what is free if that is less."""


def prefix_memory() -> int:
    """Bytes. Prefixes lie in the machine's memory, whatever the device."""
    return min(PREFIX_BYTES, free_memory(torch.device("cpu")) // 20)


def limits_for(request: RolloutRequest, model: Any, device: torch.device) -> Limits:
    max_batch = request.max_batch or MAX_BATCH
    budget = int(MEMORY_SHARE * free_memory(device)) // kv_bytes_per_token(model)
    return Limits(max_batch, kv_tokens=budget, refill=max(1, max_batch // 16))


def kv_bytes_per_token(model: Any) -> int:
    """Bytes of keys and values of one token over all layers."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    size = torch.finfo(model.dtype).bits // 8
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * size)


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            used = int(file.read())
    except FileNotFoundError:  # no such accounting here
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))
