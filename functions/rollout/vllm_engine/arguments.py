"""From a job's wishes to vLLM's arguments."""

from __future__ import annotations

from typing import Any

from vllm.config import WeightTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from functions.modeling import model_config
from functions.rollout.vllm_engine.adapters import room_for
from functions.rollout.vllm_engine.kv_use import head_size, kv_token_bytes
from functions.rollout.vllm_engine.offload import kv_transfer_config
from functions.rollout.vllm_engine.plugin import BACKEND
from functions.rollout.vllm_engine.speculation import speculation
from rlhfless.engines import EngineOptions
from rlhfless.errors import UserError
from rlhfless.messages import ModelRef

CPU_KV_BYTES = 1 << 30
"""For keys and values on a CPU where the job does not say; vLLM takes 4 GiB and more."""


def engine_arguments(ref: ModelRef, options: EngineOptions, accelerator: str) -> AsyncEngineArgs:
    """Raises ``UserError`` for a model that vLLM cannot serve there, and would die of."""
    cpu = accelerator == "cpu"
    config = model_config(ref.path)
    if cpu:
        _check_heads(config)
    token_bytes = kv_token_bytes(config, ref.dtype) if options.kv_store else 0
    arguments = AsyncEngineArgs(
        model=ref.path,
        dtype=ref.dtype,
        seed=0,
        skip_tokenizer_init=True,  # tokens in, tokens out
        logprobs_mode="processed_logprobs",  # of the distribution sampled from
        tensor_parallel_size=options.tensor_parallel,
        enable_prefix_caching=True,
        enforce_eager=cpu,
        distributed_executor_backend="uni" if options.tensor_parallel == 1 else "mp",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        disable_log_stats=False,
        kv_transfer_config=kv_transfer_config(accelerator, token_bytes) if token_bytes else None,
        generation_config="vllm",  # what a request does not say is nobody else's to decide
        **speculation(options, accelerator),
    )
    kv_bytes = options.kv_cache_bytes or (CPU_KV_BYTES if cpu else 0)
    if kv_bytes:
        arguments.kv_cache_memory_bytes = kv_bytes
    if options.max_batch:
        arguments.max_num_seqs = options.max_batch
    if options.lora_rank:
        arguments.enable_lora = True
        arguments.max_lora_rank = room_for(options.lora_rank)
        arguments.max_loras = 1
    return arguments


def _check_heads(config: Any) -> None:
    size, known = head_size(config), CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise UserError(
            f"vLLM's attention for CPUs takes heads of {', '.join(map(str, known))} dimensions, "
            f"and the model's have {size}",
            param="rollout.engine",
            hint="set rollout.engine: transformers",
        )
