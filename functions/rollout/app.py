"""The rollout function: requests for samples in, streams of tokens out."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.modeling import device_for
from functions.readings import Measured, Reading
from functions.rollout.engine import Engine
from functions.rollout.transformers_engine import TransformersEngine
from functions.rollout.vllm_engine.environment import prepare_environment
from rlhfless.errors import UserError
from rlhfless.messages import Frame, PrefillRequest, Request, RolloutRequest

_log = logging.getLogger(__name__)


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

    def readings(self) -> Sequence[Reading]:
        return self._engine.readings() if isinstance(self._engine, Measured) else ()

    def close(self) -> None:
        self._engine.close()


def create(config: FunctionConfig) -> Function:
    torch.set_num_threads(config.threads)
    return Rollout(_engine(config))


def _engine(config: FunctionConfig) -> Engine:
    options = config.engine
    on_gpu = config.accelerator != "cpu"
    if options.name == "vllm" or (options.name == "auto" and on_gpu and _has_vllm()):
        if not _has_vllm():
            raise UserError(
                "vLLM is not installed where rollout runs",
                param="rollout.engine",
                hint="pip install 'rlhfless[vllm]', or set rollout.engine: transformers",
            )
        prepare_environment(config.accelerator, config.threads, config.workdir)
        from functions.rollout.vllm_engine.engine import VllmEngine  # imports vLLM: seconds

        return VllmEngine(options, config.accelerator, config.workdir)
    if options.drafting is not None:
        _log.warning("rollout.drafting is off: it needs the engine vllm")
    return TransformersEngine(device_for(config.accelerator))


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None
