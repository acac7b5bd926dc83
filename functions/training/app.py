"""The training function: ``GradientsRequest``, ``TrainRequest`` and ``ExportRequest``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.modeling import device_for
from functions.training.export import export
from functions.training.trainer import Trainer
from rlhfless.messages import ExportRequest, Frame, GradientsRequest, Request, TrainRequest


class TrainingFunction:
    def __init__(self, config: FunctionConfig) -> None:
        self._device = device_for(config.accelerator)
        self._trainer = Trainer(self._device)
        self.handlers: Mapping[type[Request], Handler] = {
            GradientsRequest: self._trainer.gradients,
            TrainRequest: self._trainer.train,
            ExportRequest: self._export,
        }

    def close(self) -> None:
        self._trainer.close()

    def _export(self, request: ExportRequest, context: CallContext) -> Iterator[Frame]:
        yield export(request, context.store, self._device)


def create(config: FunctionConfig) -> Function:
    return TrainingFunction(config)
