"""vLLM's core dies with us, also when it is forked and so does not load the plugin again."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

import pytest

from functions.rollout.vllm_engine import plugin
from functions.rollout.vllm_engine.environment import PARENT_VARIABLE

PR_GET_PDEATHSIG = 2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")


def death_signal() -> int:
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
    return found.value


def forked() -> int:
    """What the parent's death will send to a child that is forked now."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(death_signal()))
    child.start()
    child.join()
    return int(answers.get())


def test_only_what_vllm_forks_dies_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getpid()))
    assert forked() == 0
    with plugin.vllm_starts():
        assert forked() == signal.SIGKILL
    assert forked() == 0


def test_a_core_whose_owner_is_gone_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    gone = context.Process(target=int)
    gone.start()
    gone.join()
    monkeypatch.setenv(PARENT_VARIABLE, str(gone.pid))
    child = context.Process(target=plugin._die_with_owner)
    child.start()
    child.join()
    assert child.exitcode == 1


def test_nobody_is_owned_where_nobody_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    with plugin.vllm_starts():
        assert forked() == 0
