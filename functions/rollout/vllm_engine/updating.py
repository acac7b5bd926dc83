"""Which weights the engine has, and how it comes to others.

Full and partial versions go through vLLM's weight-transfer interface into the weights themselves
(``weights``); LoRA versions are loaded as adapters beside them (``adapters``). Whatever can be
wrong with a version is found before anything is touched, while what runs goes on.
"""

from __future__ import annotations

from vllm.distributed.weight_transfer.base import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.v1.engine.async_llm import AsyncLLM

from functions.rollout.vllm_engine.adapters import Adapters
from functions.rollout.vllm_engine.answering import lora_request
from functions.rollout.vllm_engine.asking import Adapter
from functions.rollout.vllm_engine.runtime import Runtime
from functions.weights.tensors import num_bytes
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import ModelRef
from rlhfless.objects import ObjectStore
from rlhfless.versions import read_manifest

_BASE = ("", 0)


class Updater:
    """Of one engine. ``adapters``: its job trains some, so the weights are never changed."""

    def __init__(self, workdir: str | None, *, adapters: bool) -> None:
        self._adapters = Adapters(workdir) if adapters else None
        self._shown = _BASE
        self.adapter: Adapter | None = None
        """What is to be applied to the weights."""
        self.broken = False
        """The last update failed half-way: nobody knows what the workers hold."""

    @property
    def salt(self) -> str:
        """Names the weights, for whoever keeps what was computed with them."""
        job, version = self._shown
        return f"{job}:{version}"

    def shows(self, ref: ModelRef) -> bool:
        return self._shown == _wanted(ref) and not self.broken

    def reset(self) -> None:
        """The engine is gone, or new."""
        self._forget()
        self._shown, self.broken = _BASE, False

    def update(self, runtime: Runtime, ref: ModelRef, store: ObjectStore) -> int:
        """Bring the engine to a version; the bytes of it that each worker read.

        Raises ``TransientError`` if it is not to be had, or the engine died or could not take it.
        """
        size = self._size(ref, store)
        try:
            if self._adapters is None:
                self._exchange_weights(runtime, ref, store)
            else:
                self._exchange_adapter(runtime, self._adapters, ref, store)
        except TransientError:
            raise
        except Exception as error:  # what failed in vLLM's processes comes as a plain Exception
            text = str(error).strip() or type(error).__name__
            raise TransientError(
                f"vLLM could not take version {ref.version} of job {ref.job}: "
                f"{text.splitlines()[-1]}"
            ) from error
        self._shown = _wanted(ref)
        return size

    def _size(self, ref: ModelRef, store: ObjectStore) -> int:
        if not ref.version:
            return 0
        manifest = read_manifest(store, ref.job, ref.version)
        if manifest is None:
            raise TransientError(
                f"version {ref.version} of job {ref.job} is not in the store {store.url}"
            )
        if (manifest.kind == "lora") != (self._adapters is not None):
            raise InternalError(
                f"version {ref.version} of job {ref.job} is {manifest.kind}, and the engine was "
                f"started {'for' if self._adapters else 'without room for'} adapters"
            )
        return num_bytes(manifest)

    def _exchange_weights(self, runtime: Runtime, ref: ModelRef, store: ObjectStore) -> None:
        version = {"job": ref.job, "version": ref.version}

        async def load(llm: AsyncLLM) -> None:
            await llm.start_weight_update()
            await llm.update_weights(WeightTransferUpdateRequest(update_info=version))
            await llm.finish_weight_update(weight_version=f"{ref.job}:{ref.version}")

        fetch = WeightTransferInitRequest(init_info={"store": store.url, **version})
        runtime.do(runtime.llm.init_weight_transfer_engine(fetch))
        self.broken = True
        runtime.exchange(load)
        self.broken = False

    def _exchange_adapter(
        self, runtime: Runtime, adapters: Adapters, ref: ModelRef, store: ObjectStore
    ) -> None:
        old = self.adapter
        new = adapters.fetch(store, ref.job, ref.version) if ref.version else None

        async def swap(llm: AsyncLLM) -> None:
            if old is not None:
                await llm.remove_lora(old.id)
            if new is not None:
                await llm.add_lora(lora_request(new))

        self.broken = True
        try:
            runtime.exchange(swap)
        except BaseException:
            if new is not None:
                adapters.forget(new)
            raise
        self._forget()
        self.adapter, self.broken = new, False

    def _forget(self) -> None:
        if self._adapters is not None and self.adapter is not None:
            self._adapters.forget(self.adapter)
        self.adapter = None


def _wanted(ref: ModelRef) -> tuple[str, int]:
    return (ref.job, ref.version) if ref.version else _BASE
