"""Hidden states of a backbone where response tokens are predicted, packed if the model can."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from functions import packed_attention
from functions.packing import Pass, Sequences, lay_out


def predictors(backbone: Any, part: Pass) -> Tensor:
    """``[r, hidden]``."""
    options = {} if part.blocks is None else {"blocks": part.blocks}
    output = backbone(
        input_ids=part.input_ids, position_ids=part.positions, use_cache=False, **options
    )
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(0, 1).index_select(0, part.predict)


@torch.no_grad()
def enable_packing(model: Any, config: Any, device: torch.device) -> bool:
    """Exchange the attention of ``model`` if it then computes packed what it computes apart.

    That takes full attention in every layer, and layers that honour positions and pass keywords on.
    It is tried on eight tokens, since architectures differ in what they ignore; a model that fails
    keeps its own attention.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return False
    sequences = Sequences(
        prompts=[np.array([1, 2], np.int32)] * 2,
        responses=[np.array([3, 1, 2, 2], np.int32), np.array([2, 3, 1, 2], np.int32)],
        starts=np.array([0, 4]),
        groups=np.zeros(2, np.int32),
    )
    apart, together = (lay_out(sequences, [0, 1], device, packed=p) for p in (False, True))
    expected = predictors(model.base_model, apart)
    try:
        packed_attention.enable(model)
        found = predictors(model.base_model, together)
        if torch.allclose(found, expected, rtol=1e-3, atol=1e-4):
            return True
    except (AttributeError, TypeError, ValueError, RuntimeError):
        pass  # takes no positions or keywords, or its attention cannot be exchanged
    packed_attention.disable(model)
    return False
