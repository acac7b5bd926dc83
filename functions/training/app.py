"""The training function: ``GradientsRequest``, ``TrainRequest`` and ``ExportRequest``.

One worker, or a group of several of which this is the leader (``functions.ranks``): then ``create``
returns when the group is whole, and a group that breaks takes the instance with it.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping

import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.modeling import device_for
from functions.ranks import Ranks
from functions.training.crew import Alone, Crew
from functions.training.export import export
from functions.training.following import follow as follow_leader
from functions.training.leading import Leading
from functions.training.relay import Relay
from functions.training.trainer import Trainer
from rlhfless.errors import RlhflessError
from rlhfless.messages import ExportRequest, Frame, GradientsRequest, Request, TrainRequest


class TrainingFunction:
    def __init__(self, config: FunctionConfig) -> None:
        self._workdir = config.workdir
        self._relay = Relay()
        device = _device(config.accelerator, config.ranks)
        self._whole = False
        crew: Crew = Alone(device)
        if config.ranks.size > 1:
            crew = Leading(config.ranks, device, self._broke, _drain)
        self._whole = True
        self._trainer = Trainer(crew)
        gradients: Handler = self._trainer.gradients
        train: Handler = self._trainer.train
        if config.ranks.size > 1:
            gradients, train = self._relay.through(gradients), self._relay.through(train)
        self.handlers: Mapping[type[Request], Handler] = {
            GradientsRequest: gradients,
            TrainRequest: train,
            ExportRequest: self._export,
        }

    def close(self) -> None:
        """Raises ``TransientError`` where a group broke that others have to do with."""
        self._trainer.close()

    def _export(self, request: ExportRequest, context: CallContext) -> Iterator[Frame]:
        # Not where the trainer keeps its model: there may be no room for a second one.
        yield export(request, context.store, torch.device("cpu"), self._workdir)

    def _broke(self, error: RlhflessError) -> None:
        self._relay.broke(error)
        if not self._whole:  # the main thread waits for workers, one of which will not come
            logging.shutdown()
            os._exit(1)
        _drain()


def create(config: FunctionConfig) -> Function:
    return TrainingFunction(config)


def follow(config: FunctionConfig) -> None:
    """What the other workers of a group do."""
    follow_leader(config.ranks, _device(config.accelerator, config.ranks))


def _device(accelerator: str, ranks: Ranks) -> torch.device:
    """Of a group, each worker on a node has an accelerator of its own."""
    device = device_for(accelerator)
    if ranks.size == 1 or device.type == "cpu":
        return device
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


def _drain() -> None:
    """Have the instance end in order, as whoever runs it would."""
    os.kill(os.getpid(), signal.SIGTERM)
