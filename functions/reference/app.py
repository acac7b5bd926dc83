"""The reference function: log-probs of given responses under a model that is not being trained."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.hidden import enable_packing, predictors
from functions.lm_head import backbone, lm_head
from functions.logprobs import head_logprobs
from functions.modeling import VersionedModel, device_for
from functions.packing import CPU_PASS_TOKENS, lay_out, plan
from functions.reference.inputs import check_sequences, sequences_of
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import Frame, Heartbeat, LogprobsDone, LogprobsRequest, Request

LOCK_POLL_S = 0.1


class Reference:
    """Holds one model and serves one call at a time; another waits for it, within its deadline.

    There is no partial answer to hand back, so a drain or the deadline ends a call with a
    ``TransientError`` between two passes, and the whole call goes elsewhere.
    """

    def __init__(self, config: FunctionConfig) -> None:
        torch.set_num_threads(config.threads)
        self._device = device_for(config.accelerator)
        self._model = VersionedModel(self._device)
        self._lock = threading.Lock()
        self._tried: Any = None
        self._packed = False
        self.handlers: Mapping[type[Request], Handler] = {LogprobsRequest: self.logprobs}

    def logprobs(self, request: LogprobsRequest, context: CallContext) -> Iterator[Frame]:
        """A heartbeat after each pass, then ``LogprobsDone``."""
        if request.temperature <= 0:
            raise UserError("log-probs need a temperature above 0", param="temperature")
        while not self._lock.acquire(timeout=LOCK_POLL_S):
            _check(context)
        try:
            yield from self._logprobs(request, context)
        finally:
            self._lock.release()

    def _logprobs(self, request: LogprobsRequest, context: CallContext) -> Iterator[Frame]:
        started = time.monotonic()
        pulled = self._model.ensure(request.model, context.store)
        context.load_s += pulled.load_s
        model = self._model.model
        config = model.config.get_text_config()
        check_sequences(
            request.prompts,
            request.responses,
            vocabulary=model.get_input_embeddings().num_embeddings,
            context=getattr(config, "max_position_embeddings", None),
        )
        packed = self._packs(model)
        sequences = sequences_of(request.prompts, request.responses)
        max_tokens = request.tokens_per_microbatch
        if self._device.type == "cpu":
            max_tokens = min(max_tokens, CPU_PASS_TOKENS)
        everything = np.arange(len(request.prompts))
        values = np.empty(sum(map(len, request.responses)), "<f4")
        for samples in plan(sequences, everything, max_tokens, packed=packed):
            _check(context)
            part = lay_out(sequences, samples, self._device, packed=packed)
            with torch.inference_mode():
                hidden = predictors(backbone(model), part)
                result = head_logprobs(lm_head(model), hidden, part.targets, request.temperature)
            values[part.where.cpu().numpy()] = result.logprobs.cpu().numpy()
            yield Heartbeat(busy_s=time.monotonic() - started)
        yield LogprobsDone(logprobs=values.tobytes(), weights_pull_s=pulled.seconds)

    def _packs(self, model: Any) -> bool:
        """Whether prompts of a group can be computed once; tried when a model is new."""
        if self._tried is not model:
            config = model.config.get_text_config()
            self._packed = enable_packing(model, config, self._device)
            self._tried = model
        return self._packed

    def close(self) -> None:
        self._model.close()
        self._tried = None


def _check(context: CallContext) -> None:
    reason = context.stop_reason
    if reason is not None:
        raise TransientError(f"log-probs were not finished before the {reason}")


def create(config: FunctionConfig) -> Function:
    return Reference(config)
