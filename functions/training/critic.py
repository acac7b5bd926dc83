"""PPO's value model: the backbone of the base model with a scalar head, trained like the policy.

The head starts at zero: before the first update every value is exactly 0, whatever the seed, and
the first advantages are the plain returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from functions.hidden import enable_packing, predictors
from functions.lm_head import plain_model
from functions.modeling import load_base
from functions.packing import Pass
from functions.training.group import SOLO, Group
from functions.training.policy import blocks, loading_place, prepare
from functions.training.shards import put, shard
from rlhfless.errors import UserError
from rlhfless.messages import ModelRef, Optimization


class Critic(nn.Module):
    """``V(s_t)`` from the state before token t, i.e. where that token is predicted.

    Full, LoRA or top layers as the policy's settings say; the head is always trained.
    """

    def __init__(
        self,
        ref: ModelRef,
        settings: Optimization,
        device: torch.device,
        seed: int,
        group: Group = SOLO,
    ):
        super().__init__()
        place = loading_place(device, group)
        base = load_base(ModelRef(path=ref.path, job=ref.job, version=0, dtype="float32"), place)
        config = base.config.get_text_config()
        enable_packing(base, config, place)
        inner = base.base_model
        self.backbone: Any = prepare(inner, inner, settings, seed).eval()
        self.head = nn.Linear(config.hidden_size, 1, device=place)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        shard(self, blocks(inner), group)

    def values(self, part: Pass) -> Tensor:
        """``[r]``, one for each response token of the pass."""
        hidden = predictors(plain_model(self.backbone), part)
        out: Tensor = self.head(hidden.to(self.head.weight.dtype))
        return out.squeeze(-1).float()

    def trainable(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        own = self.trainable()
        if own.keys() != tensors.keys():
            raise UserError(
                "the stored value model and the job's training differ in "
                f"{min(own.keys() ^ tensors.keys())}",
                param="training.trainable",
                hint="continue a run with the trainable part it was started with",
            )
        for name, parameter in own.items():
            put(parameter, tensors[name])
