"""A function that tells of the torch it finds: see ``test_local_platform``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from functions.context import CallContext, FunctionConfig
from rlhfless.messages import Frame, RolloutDone, RolloutRequest

WARM = "torch" in sys.modules


class TorchProbe:
    def __init__(self) -> None:
        self.handlers: Any = {RolloutRequest: self.rollout}

    def rollout(self, request: RolloutRequest, context: CallContext) -> Iterator[Frame]:
        import torch

        ones = torch.ones(512, 512)
        product = ones @ ones
        yield RolloutDone(
            generated_tokens=torch.get_num_threads(),
            prefill_saved=int(WARM),
            prefill_computed=int((product == 512).sum()),
        )

    def close(self) -> None:
        pass


def create(config: FunctionConfig) -> TorchProbe:
    return TorchProbe()
