"""The reference function: log-probs of given responses under a model that is not being trained."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import torch

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.logprobs import microbatches, scatter, token_logprobs
from functions.microbatches import check_sequences
from functions.modeling import VersionedModel, device_for
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
        model = self._model.model
        prompts, responses = request.prompts, request.responses
        config = model.config.get_text_config()
        check_sequences(
            prompts,
            responses,
            vocabulary=model.get_input_embeddings().num_embeddings,
            context=getattr(config, "max_position_embeddings", None),
        )
        values: list[torch.Tensor | None] = [None] * len(prompts)
        for microbatch in microbatches(
            prompts, responses, request.tokens_per_microbatch, self._device
        ):
            _check(context)
            with torch.inference_mode():
                result = token_logprobs(model, microbatch, request.temperature)
            scatter(microbatch, result.logprobs.cpu(), values)
            yield Heartbeat(busy_s=time.monotonic() - started)
        flat = torch.cat([value for value in values if value is not None] or [torch.empty(0)])
        yield LogprobsDone(
            logprobs=flat.numpy().astype("<f4").tobytes(), weights_pull_s=pulled.seconds
        )

    def close(self) -> None:
        self._model.close()


def _check(context: CallContext) -> None:
    reason = context.stop_reason
    if reason is not None:
        raise TransientError(f"log-probs were not finished before the {reason}")


def create(config: FunctionConfig) -> Function:
    return Reference(config)
