"""What fits where: room for keys and values beside the weights of an instance.

The number of KV blocks decides when samples queue, so a measured number should replace the one
computed here wherever there is one. Worked number: Llama-3-8B on an 80 GB H100, 79.2 GiB · 0.9 =
71.3 GiB less 15.0 of weights, 1.8 reserved and 1.2 of activations: 53.3 GiB, 27,300 blocks of 2 MiB
(vLLM itself found 53.29 GiB, pull request 10511).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlhfless.errors import UserError
from simulator.hardware import GIB, Accelerator
from simulator.model_shape import ModelShape

BLOCK_TOKENS = 16
UTILISATION = 0.9
"""Share of the memory an inference engine may use (vLLM's ``gpu_memory_utilization``)."""
TENSOR_PARALLEL = (1, 2, 4, 8, 16, 32)


def kv_bytes_free(
    shape: ModelShape,
    accelerator: Accelerator,
    tensor_parallel: int = 1,
    utilisation: float = UTILISATION,
    batched_tokens: int = 8192,
    max_rows: int = 256,
) -> float:
    """Bytes left for keys and values on each accelerator of an instance; negative: none, and so
    many are missing. ``batched_tokens`` and ``max_rows`` bound an iteration, and with it the memory
    of its activations: residual, normed input, both halves of the MLP and their product, logits."""
    weights = shape.weight_bytes / tensor_parallel
    inner = shape.intermediate
    if shape.experts is not None:
        routed = shape.experts.active * shape.experts.intermediate
        inner = max(inner, routed + shape.experts.shared_intermediate)
    width = 3 * shape.hidden + (3 if shape.gated else 2) * inner / tensor_parallel
    activations = batched_tokens * width * shape.dtype_bytes
    logits = max_rows * shape.vocabulary * (shape.dtype_bytes + 4)
    usable = utilisation * accelerator.memory_bytes - accelerator.reserved_gib * GIB
    return usable - weights - activations - logits


def kv_blocks(
    shape: ModelShape,
    accelerator: Accelerator,
    tensor_parallel: int = 1,
    block_tokens: int = BLOCK_TOKENS,
    utilisation: float = UTILISATION,
    batched_tokens: int = 8192,
    max_rows: int = 256,
) -> int:
    """Blocks of ``block_tokens`` tokens an instance has room for; 0 where nothing fits."""
    free = kv_bytes_free(shape, accelerator, tensor_parallel, utilisation, batched_tokens, max_rows)
    # Where there are more ranks than heads of keys and values, ranks keep copies of one.
    split = min(tensor_parallel, shape.kv_heads)
    return max(0, int(free // (block_tokens * shape.kv_bytes_per_token / split)))


def smallest_tensor_parallel(
    shape: ModelShape, accelerator: Accelerator, context_tokens: int, most: int
) -> int | None:
    """The smallest degree up to ``most`` at which the weights and one sequence of
    ``context_tokens`` fit; None: none does."""
    for degree in TENSOR_PARALLEL:
        if degree > most or shape.heads % degree:
            continue
        if kv_blocks(shape, accelerator, degree) * BLOCK_TOKENS >= context_tokens:
            return degree
    return None


def check_fits(
    shape: ModelShape,
    name: str,
    accelerators: Mapping[str, Accelerator],
    tensor_parallel: int,
    context_tokens: int,
    per_node: int,
    param: str,
) -> None:
    """Raises ``UserError`` naming ``param`` where ``tensor_parallel`` accelerators called ``name``
    cannot hold the model and one sequence, with the nearest thing that would: more of them in a
    node of ``per_node``, else the smallest accelerator that can."""
    accelerator = accelerators[name]
    free = kv_bytes_free(shape, accelerator, tensor_parallel)
    tokens = kv_blocks(shape, accelerator, tensor_parallel) * BLOCK_TOKENS
    if tokens >= context_tokens:
        return
    weights = f"{shape.weight_bytes / GIB:.1f} GiB of weights in {shape.dtype}"
    where = name if tensor_parallel == 1 else f"{tensor_parallel} x {name}"
    if free <= 0:
        problem = f"{shape.name} ({weights}) does not fit on {where}"
    else:
        problem = (
            f"{where} has room for {tokens:,} tokens beside {shape.name} ({weights}), "
            f"less than one sequence of {context_tokens:,}"
        )
    raise UserError(
        f"{param}: {problem}; {_what_would(shape, name, accelerators, context_tokens, per_node)}",
        param=param,
    )


def _what_would(
    shape: ModelShape,
    name: str,
    accelerators: Mapping[str, Accelerator],
    context_tokens: int,
    per_node: int,
) -> str:
    more = smallest_tensor_parallel(shape, accelerators[name], context_tokens, per_node)
    if more is not None:
        return f"it fits with tensor_parallel {more}"
    for degree in TENSOR_PARALLEL:
        fitting = [
            each
            for each in _by_memory(accelerators)
            if shape.dtype in accelerators[each].tflops
            and shape.heads % degree == 0
            and kv_blocks(shape, accelerators[each], degree) * BLOCK_TOKENS >= context_tokens
        ]
        if fitting:
            return f"it fits on {degree} x {fitting[0]}" if degree > 1 else f"{fitting[0]} holds it"
    return "nothing known holds it"


def _by_memory(accelerators: Mapping[str, Accelerator]) -> Iterable[str]:
    return sorted(accelerators, key=lambda each: accelerators[each].memory_gib)
