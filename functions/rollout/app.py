"""The rollout function: requests for samples in, streams of tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.modeling import device_for
from functions.rollout.engine import Engine
from functions.rollout.transformers_engine import TransformersEngine
from rlhfless.messages import Frame, PrefillRequest, Request, RolloutRequest


class Rollout:
    """A ``Function`` with one engine behind it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.handlers: Mapping[type[Request], Handler] = {
            RolloutRequest: self.rollout,
            PrefillRequest: self.prefill,
        }

    def rollout(self, request: RolloutRequest, context: CallContext) -> Iterator[Frame]:
        context.inbox.open()
        context.load_s += self._engine.ensure(request.model, context.store).load_s
        yield from self._engine.run(request, context)

    def prefill(self, request: PrefillRequest, context: CallContext) -> Iterator[Frame]:
        context.load_s += self._engine.ensure(request.model, context.store).load_s
        yield self._engine.prefill(request, context)

    def close(self) -> None:
        self._engine.close()


def create(config: FunctionConfig) -> Function:
    torch.set_num_threads(config.threads)
    return Rollout(TransformersEngine(device_for(config.accelerator)))
