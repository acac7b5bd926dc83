"""What vLLM is told of drafting; vLLM itself is not needed."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from functions.rollout.vllm_engine.proposer import Proposer
from functions.rollout.vllm_engine.speculation import check_sampling, speculation
from rlhfless.engines import PLAIN, DraftingOptions, EngineOptions
from rlhfless.errors import UserError
from rlhfless.messages import SamplingParams

DRAFTING = DraftingOptions(max_tokens=5, memory_mib=2, free_tokens=64.0)


def test_no_drafting_unless_asked_for() -> None:
    assert speculation(PLAIN, "cuda") == {}


def test_a_gpu_drafts() -> None:
    told = speculation(EngineOptions(drafting=DRAFTING), "cuda")
    config = told["speculative_config"]
    assert config["method"] == "custom_class"
    assert config["num_speculative_tokens"] == 5
    module, _, name = config["model"].rpartition(".")
    assert (module, name) == (Proposer.__module__, "Proposer")


def test_a_cpu_drafts_for_greedy_requests_alone_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert speculation(EngineOptions(drafting=DRAFTING), "cpu") == {}
    assert "rollout.drafting is off" in caplog.text
    assert "CPU" in caplog.text
    caplog.clear()
    assert speculation(EngineOptions(drafting=DRAFTING, greedy=True), "cpu")
    assert not caplog.text


def test_an_instance_for_greedy_requests_refuses_others() -> None:
    options = EngineOptions(drafting=DRAFTING, greedy=True)
    check_sampling(options, SamplingParams(temperature=0.0))
    with pytest.raises(UserError, match="greedy"):
        check_sampling(options, SamplingParams(temperature=0.1))
    check_sampling(EngineOptions(drafting=DRAFTING), SamplingParams(temperature=1.0))


def test_the_proposer_is_made_of_what_vllm_is_told() -> None:
    told = speculation(EngineOptions(drafting=DRAFTING), "cuda")
    proposer = Proposer(SimpleNamespace(additional_config=told["additional_config"]))
    proposer.load_model(object())
    tokens = np.tile(np.arange(10, 20, dtype=np.int32), (1, 6))
    lengths = np.array([45])
    drafts = proposer.propose([[14]], lengths, tokens, slot_mappings=None)
    assert drafts == [[15, 16, 17, 18, 19]]
