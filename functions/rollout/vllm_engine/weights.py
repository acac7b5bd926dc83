"""Versions of a job's weights, pulled by vLLM's workers from the object store.

A ``WeightTransferEngine`` (vLLM's interface for trainers): each worker reads the version itself
and takes its part. vLLM keeps weights in other layouts than checkpoints do, fused and packed, so a
layer is loaded whole or not at all: what a version does not hold comes from the model's own files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from functions.rollout.vllm_engine.checkpoint import Checkpoint
from functions.weights.tensors import pull
from rlhfless.objects import ObjectStore


@dataclass
class _Nothing(WeightTransferInitInfo):
    pass


@dataclass
class Target(WeightTransferUpdateInfo):
    """Version ``version`` of job ``job`` in the object store ``store``; 0: the model as it was."""

    store: str
    job: str
    version: int


class StoredWeights(WeightTransferEngine[_Nothing, Target]):
    """Of one worker."""

    init_info_cls = _Nothing
    update_info_cls = Target
    supports_draft_weight_update = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._checkpoint = Checkpoint(self.model_config.model)
        self._overridden: set[str] = set()

    def init_transfer_engine(self, init_info: _Nothing) -> None:
        """There is nobody to meet: the store is all there is between trainer and us."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Target) -> None:
        """Raises as ``functions.weights.tensors.pull`` does, before anything is changed."""
        new: dict[str, Tensor] = {}
        if update_info.version > 0:
            _, new = pull(ObjectStore(update_info.store), update_info.job, update_info.version)
        names = self._checkpoint.whole_blocks(self._overridden | new.keys())
        self.model.load_weights(self._values(names, new))
        self._overridden = set(new)

    def _values(self, names: list[str], new: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name in names:
            yield name, new[name] if name in new else self._checkpoint.tensor(name)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            # A head that shares the embedding's weights has a packed copy of them, made at the
            # model's start only.
            for layer in self.model.modules():
                if isinstance(layer, ParallelLMHead):
                    layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        self._checkpoint.close()
