"""Which engine an instance gets."""

from __future__ import annotations

import pytest
import torch

from functions.context import FunctionConfig
from functions.rollout import app
from functions.rollout.transformers_engine import TransformersEngine
from rlhfless.engines import EngineOptions
from rlhfless.errors import UserError


def test_auto_is_transformers_on_a_cpu_even_where_vllm_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_has_vllm", lambda: True)
    assert isinstance(app._engine(FunctionConfig()), TransformersEngine)


def test_auto_is_transformers_on_a_gpu_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_has_vllm", lambda: False)
    monkeypatch.setattr(app, "device_for", lambda _accelerator: torch.device("cpu"))
    assert isinstance(app._engine(FunctionConfig(accelerator="cuda")), TransformersEngine)


def test_a_vllm_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_has_vllm", lambda: False)
    with pytest.raises(UserError, match="vLLM is not installed") as raised:
        app._engine(FunctionConfig(engine=EngineOptions(name="vllm")))
    assert raised.value.param == "rollout.engine"
    assert "rollout.engine: transformers" in str(raised.value.hint)
