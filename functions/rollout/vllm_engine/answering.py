"""One sample in vLLM's hands: asked for in vLLM's terms, its outputs put into the asker's queue."""

from __future__ import annotations

import asyncio
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from functions.rollout.vllm_engine.asking import Adapter, Delta, Deltas, Generate, Manner
from rlhfless.errors import InternalError, RlhflessError, TransientError


class Answer:
    """``run`` once, in ``task``; ``over`` when that is done, however it ended: then there has been
    a last delta."""

    task: asyncio.Task[None]

    def __init__(self, asked: Generate, manner: Manner, deltas: Deltas) -> None:
        self._asked = asked
        self._manner = manner
        self._deltas = deltas
        self._first = True
        self._said = False  # the last delta

    async def run(self, llm: AsyncLLM) -> None:
        asked, manner = self._asked, self._manner
        async for output in llm.generate(
            TokensPrompt(prompt_token_ids=list(asked.tokens), cache_salt=manner.salt),
            _params(asked, manner),
            asked.id,
            lora_request=manner.adapter and lora_request(manner.adapter),
        ):
            self._put(output)

    def over(self) -> None:
        if self.task.cancelled():
            self._last(error=TransientError("vLLM's engine is going away"))
        elif (failure := self.task.exception()) is not None:
            self._last(error=_told(failure))
        elif not self._said:
            self._deltas.put(Delta(self._asked.key, end="abort"))

    def _put(self, output: RequestOutput) -> None:
        found = output.outputs[0]
        cached = output.num_cached_tokens or 0 if self._first else 0
        self._first = False
        tokens, logprobs = found.token_ids, found.logprobs or ()
        end, error = found.finish_reason, None
        if end not in (None, "stop", "length", "abort"):
            end, error = None, TransientError(f"vLLM gave a sample up: {end}")
        self._said = end is not None or error is not None
        self._deltas.put(
            Delta(
                key=self._asked.key,
                tokens=tokens,
                logprobs=[of[t].logprob for t, of in zip(tokens, logprobs, strict=True)],
                cached=cached,
                end=end,
                error=error,
            )
        )

    def _last(self, *, error: RlhflessError) -> None:
        if not self._said:
            self._deltas.put(Delta(self._asked.key, error=error))


def lora_request(adapter: Adapter) -> LoRARequest:
    return LoRARequest(adapter.name, adapter.id, adapter.folder)


def _params(asked: Generate, manner: Manner) -> SamplingParams:
    sampling = manner.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=asked.seed,
        stop_token_ids=list(manner.stop_token_ids),
        ignore_eos=True,
        max_tokens=asked.max_tokens,
        logprobs=0,  # of the token that was drawn, and of no other
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=_extra(asked.transfer),
    )


def _extra(transfer: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if transfer is None else {"kv_transfer_params": transfer}


def _told(error: BaseException) -> RlhflessError:
    if isinstance(error, RlhflessError):
        return error
    if isinstance(error, EngineDeadError):
        return TransientError("vLLM's engine has died; it is started again")
    return InternalError(f"vLLM failed: {type(error).__name__}: {error}")
