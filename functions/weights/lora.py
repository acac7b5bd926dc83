"""LoRA versions: between peft's modules, our manifests and merged weights.

A LoRA version stores, for each target module, ``{module}.lora_A.weight`` ``[rank, in]`` and
``{module}.lora_B.weight`` ``[out, rank]``; ``module`` is its path in the plain model. Merged, the
target's weight is ``W0 + alpha / rank * B @ A`` (Hu et al. 2021, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from rlhfless.errors import InternalError, UserError
from rlhfless.versions import LoraConfig

_A, _B = ".lora_A.weight", ".lora_B.weight"
_PEFT_PREFIX = "base_model.model."


def adapter_tensors(peft_model: Any) -> dict[str, torch.Tensor]:
    """The adapter of a peft LoRA model under the names a version stores it by."""
    from peft import get_peft_model_state_dict

    state: dict[str, torch.Tensor] = get_peft_model_state_dict(
        peft_model, save_embedding_layers=False
    )
    tensors = {name.removeprefix(_PEFT_PREFIX): tensor for name, tensor in state.items()}
    for name in tensors:
        if not name.endswith((_A, _B)):
            raise UserError(
                f"{name} cannot be part of a LoRA version: only linear layers can be adapted",
                param="training.lora.targets",
            )
    return tensors


def adapter_config(peft_model: Any) -> LoraConfig:
    """The shape of a peft LoRA model's adapter. Raises ``UserError`` for variants of LoRA."""
    config = peft_model.peft_config[peft_model.active_adapter]
    for variant in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        if getattr(config, variant, None):
            raise UserError(f"LoRA with {variant} is not supported", param="training.lora")
    return LoraConfig(rank=config.r, alpha=config.lora_alpha, targets=sorted(config.target_modules))


def load_adapter(
    peft_model: Any,
    tensors: Mapping[str, torch.Tensor],
    put: Callable[[torch.Tensor, torch.Tensor], object] = torch.Tensor.copy_,
) -> None:
    """Put a version's adapter into a peft model, in place; ``put`` writes one tensor."""
    with torch.no_grad():
        own = adapter_tensors(peft_model)
        if own.keys() != tensors.keys():
            odd = min(own.keys() ^ tensors.keys())
            raise UserError(
                f"the stored adapter and the job's LoRA settings differ at {odd}",
                param="training.lora.targets",
            )
        for name, tensor in tensors.items():
            put(own[name], tensor)


def pairs(
    tensors: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(module, A, B) of every target of a LoRA version."""
    for name, a in tensors.items():
        if name.endswith(_A):
            module = name.removesuffix(_A)
            b = tensors.get(module + _B)
            if b is None:
                raise InternalError(f"the adapter of {module} has no {_B}")
            yield module, a, b


def delta(
    a: torch.Tensor, b: torch.Tensor, lora: LoraConfig, *, transposed: bool, device: torch.device
) -> torch.Tensor:
    """``alpha / rank * B @ A`` in float32, ``[out, in]``; ``[in, out]`` where ``transposed``."""
    product = (b.to(device, torch.float32) @ a.to(device, torch.float32)) * (lora.alpha / lora.rank)
    return product.T if transposed else product
