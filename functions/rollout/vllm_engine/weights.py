"""Versions of a job's weights, pulled by vLLM's workers from the object store.

A ``WeightTransferEngine`` (vLLM's interface for trainers): each worker reads the version itself
and takes its part. That happens in two steps. ``init_transfer_engine`` fetches a version, while the
engine serves another; should the version be missing or corrupt, nothing has happened. An update
then loads what was fetched.

vLLM keeps weights in other layouts than checkpoints do, fused and packed, so a layer is loaded
whole or not at all: what a version does not hold comes from the model's own files.
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
from rlhfless.errors import InternalError
from rlhfless.objects import ObjectStore


@dataclass
class Fetch(WeightTransferInitInfo):
    """Version ``version`` of job ``job`` in the object store ``store``; 0: the model as it was."""

    store: str
    job: str
    version: int


@dataclass
class Load(WeightTransferUpdateInfo):
    """The version that was fetched last."""

    job: str
    version: int


class StoredWeights(WeightTransferEngine[Fetch, Load]):
    """Of one worker."""

    init_info_cls = Fetch
    update_info_cls = Load
    supports_draft_weight_update = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._checkpoint = Checkpoint(self.model_config.model)
        self._overridden: set[str] = set()
        self._fetched: tuple[Load, dict[str, Tensor]] | None = None

    def init_transfer_engine(self, init_info: Fetch) -> None:
        """Raises as ``functions.weights.tensors.pull`` does."""
        self._fetched = None
        tensors: dict[str, Tensor] = {}
        if init_info.version > 0:
            _, tensors = pull(ObjectStore(init_info.store), init_info.job, init_info.version)
        self._fetched = Load(init_info.job, init_info.version), tensors

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Load) -> None:
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched[0] != update_info:
            raise InternalError(f"{update_info} was not fetched")
        new = fetched[1]
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
        self._fetched = None
        self._checkpoint.close()
