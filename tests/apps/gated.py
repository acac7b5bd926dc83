"""The real functions behind gates: a test stops a call at a point of its choice, and kills there.

A gate is a file ``<name>.json`` in the folder ``RLHFLESS_TEST_GATES``:

    call    which calls, as a shell pattern over call ids (``step-000001/rollout/*``)
    after   where in the call: ``begin`` (before any work), ``result`` (all work done, no answer
            sent) or the name of a frame (``Finished``: right after the first such frame)
    action  ``wait`` until ``<name>.open`` exists or the call is told to stop, or ``die`` by SIGKILL
    times   how many calls it holds up; later ones pass (default 1)

A call that reaches a gate leaves its pid in ``<name>.reached-<n>``. Every call that begins is noted
in ``calls.jsonl``, so a test can count what was really done. The controller's own gates are in
``tests/apps/gated_cli.py``.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from functions.context import CallContext, Function, FunctionConfig, Handler
from rlhfless.messages import TERMINAL, Frame, RolloutRequest

FOLDER = "RLHFLESS_TEST_GATES"
POLL_S = 0.005


def matching(call: str, point: str) -> Iterator[tuple[str, str]]:
    """Name and action of the gates that hold up ``call`` at ``point``, each claimed for it."""
    folder = Path(os.environ[FOLDER])
    for path in sorted(folder.glob("*.json")):
        gate = json.loads(path.read_text())
        if gate["after"] == point and fnmatch.fnmatch(call, gate["call"]):
            for number in range(gate.get("times", 1)):
                try:
                    with open(folder / f"{path.stem}.reached-{number}", "x") as file:
                        file.write(str(os.getpid()))
                except FileExistsError:
                    continue
                yield path.stem, gate.get("action", "wait")
                break


def is_open(name: str) -> bool:
    return (Path(os.environ[FOLDER]) / f"{name}.open").exists()


def note(**values: Any) -> None:
    """One line, written at once, so that lines of several processes do not mix."""
    line = json.dumps(values) + "\n"
    file = os.open(
        Path(os.environ[FOLDER]) / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    os.write(file, line.encode())
    os.close(file)


def _pass(call: str, point: str, context: CallContext) -> None:
    for name, action in matching(call, point):
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while not is_open(name) and context.stop_reason is None:
            time.sleep(POLL_S)


def _gated(handler: Handler) -> Handler:
    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        call = request.call.id
        held = {}
        if isinstance(request, RolloutRequest):
            held = {sample.id: len(sample.tokens) for sample in request.samples}
        note(call=call, kind=type(request).__name__, pid=os.getpid(), held=held)
        _pass(call, "begin", context)
        for frame in handler(request, context):
            if isinstance(frame, TERMINAL):
                _pass(call, "result", context)
            yield frame
            _pass(call, type(frame).__name__, context)

    return handle


class _Gated:
    def __init__(self, function: Function) -> None:
        self._function = function
        self.handlers = {kind: _gated(h) for kind, h in function.handlers.items()}

    def close(self) -> None:
        self._function.close()


def _creator(name: str) -> Callable[[FunctionConfig], Function]:
    def create(config: FunctionConfig) -> Function:
        if name == "rollout":  # stream every token at once, so that a call can die between two
            loop = importlib.import_module("functions.rollout.generation")
            loop.FLUSH_S = 0.0  # type: ignore[attr-defined]
        function: Function = importlib.import_module(f"functions.{name}.app").create(config)
        return _Gated(function)

    return create


rollout = _creator("rollout")
reward = _creator("reward")
reference = _creator("reference")
training = _creator("training")
