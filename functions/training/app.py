"""The training function: ``GradientsRequest``, ``TrainRequest`` and ``ExportRequest``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.modeling import device_for
from functions.training.export import export
from functions.training.trainer import Trainer
from rlhfless.messages import ExportRequest, Frame, GradientsRequest, Request, TrainRequest


class TrainingFunction:
    def __init__(self, config: FunctionConfig) -> None:
        self._workdir = config.workdir
        self._trainer = Trainer(device_for(config.accelerator))
        self.handlers: Mapping[type[Request], Handler] = {
            GradientsRequest: self._trainer.gradients,
            TrainRequest: self._trainer.train,
            ExportRequest: self._export,
        }

    def close(self) -> None:
        self._trainer.close()

    def _export(self, request: ExportRequest, context: CallContext) -> Iterator[Frame]:
        # Not where the trainer keeps its model: there may be no room for a second one.
        yield export(request, context.store, torch.device("cpu"), self._workdir)


def create(config: FunctionConfig) -> Function:
    return TrainingFunction(config)
