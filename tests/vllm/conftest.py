"""vLLM on the CPU, for tests that need it; without it they are skipped, and say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from functions.rollout.engine import Engine
from functions.rollout.transformers_engine import TransformersEngine
from functions.rollout.vllm_engine.environment import prepare_environment
from rlhfless.engines import EngineOptions
from tests.conftest import CHAT_TEMPLATE, make_model, make_tokenizer

HERE = Path(__file__).parent
MISSING = "vLLM is not installed; make test-vllm installs it and runs these"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # What vLLM and what it imports warn of is not for us to mend.
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Unclosed context <zmq"))


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As everybody's, but with heads of 32: vLLM's attention for CPUs knows no smaller ones."""
    folder = tmp_path_factory.mktemp("tiny-model")
    make_model(head_dim=32).save_pretrained(folder)
    make_tokenizer(CHAT_TEMPLATE).save_pretrained(folder)
    return folder


Start = Callable[[EngineOptions], Engine]


@pytest.fixture(scope="session")
def start_vllm() -> Start:
    """Starts take half a minute: share engines where tests allow. Whoever starts one closes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare_environment("cpu", 1)
        pytest.importorskip("vllm", reason=MISSING)
        from functions.rollout.vllm_engine.engine import VllmEngine

    def start(options: EngineOptions) -> Engine:
        return VllmEngine(options, "cpu")

    return start


@pytest.fixture(scope="session")
def vllm_engine(start_vllm: Start) -> Iterator[Engine]:
    """With no wishes; it serves whatever model it is asked for."""
    engine = start_vllm(EngineOptions(name="vllm", kv_cache_bytes=64 << 20))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def transformers_engine() -> Iterator[Engine]:
    torch.set_num_threads(1)
    engine = TransformersEngine(torch.device("cpu"))
    yield engine
    engine.close()


@pytest.fixture(params=["transformers", "vllm"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found
