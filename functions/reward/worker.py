"""The process user code runs in: ``python -m functions.reward.worker`` with four inherited
descriptors (calls, control, notes, trace) and ``open`` or ``isolated`` as arguments.

Started by ``functions.reward.process``. It forks at once: the parent becomes the supervisor, the
child loads and calls the user's function. Neither torch nor anything else heavy is imported unless
the user's code does so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import mmap
import os
import signal
import socket
import sys

from functions.reward.isolation import adopt_orphans, die_with_parent, leave_network, limit_memory
from functions.reward.supervise import supervise
from functions.reward.tracked import SHARED_BYTES, SLOTS, TrackedList, clear
from functions.reward.user_code import RewardCallable, UserCodeError, arguments_of, locate
from functions.reward.wire import (
    Failed,
    Load,
    Loaded,
    Reply,
    Score,
    Scores,
    Started,
    pack,
    receive,
    to_worker_decoder,
)

TRACE_SIGNAL = signal.SIGUSR2


def main(arguments: list[str]) -> None:
    calls_fd, control_fd, notes_fd, trace_fd = map(int, arguments[:4])
    for descriptor in (calls_fd, control_fd, notes_fd, trace_fd):
        os.set_inheritable(descriptor, False)
    calls = socket.socket(fileno=calls_fd)
    control = socket.socket(fileno=control_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what our starter blocked is not for us
    adopt_orphans()
    supervisor = os.getpid()
    worker = os.fork()
    if worker:
        calls.close()
        _let_go_of_output()
        supervise(worker, control)
        return
    control.close()
    os.setsid()
    exposed = leave_network() if arguments[4] == "isolated" else None
    die_with_parent(supervisor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed survives a crash
    faulthandler.enable(trace_fd)
    faulthandler.register(TRACE_SIGNAL, trace_fd, all_threads=True)
    notes = memoryview(mmap.mmap(notes_fd, SHARED_BYTES)).cast("q")
    serve(calls, notes, exposed)
    os._exit(0)  # threads of the user's do not keep us


def _let_go_of_output() -> None:
    """The end of the captured output should mean that user code has ended, not the supervisor."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def serve(calls: socket.socket, notes: memoryview, exposed: str | None) -> None:
    """Load the function, then answer calls until the reward function closes the socket."""
    process = os.getpid()
    clear(notes)
    calls.sendall(pack(Started(pid=process, exposed=exposed)))
    body = receive(calls)
    if body is None:
        return
    load = to_worker_decoder.decode(body)
    assert isinstance(load, Load)
    try:
        limit_memory(load.memory_bytes)
        function = RewardCallable(load.target)
    except UserCodeError as error:
        _reply(calls, process, _failure(error, error.sample))
        return
    _reply(calls, process, Loaded(path=function.path))
    while (body := receive(calls)) is not None:
        call = to_worker_decoder.decode(body)
        assert isinstance(call, Score)
        _reply(calls, process, _score(function, call, notes))


def _score(function: RewardCallable, call: Score, notes: memoryview) -> Reply:
    clear(notes)
    lists = {name: TrackedList(getattr(call, name), notes, SLOTS.index(name)) for name in SLOTS[:3]}
    columns = {
        name: TrackedList(values, notes, SLOTS.index("columns"))
        for name, values in call.columns.items()
    }
    try:
        values = function(arguments_of(call, lists, columns), len(call.completions))
    except UserCodeError as error:
        return _failure(error, locate(error, call, notes, function.path))
    return Scores(values=values)


def _failure(error: UserCodeError, sample: int) -> Failed:
    return Failed(
        what=error.what,
        sample=sample,
        hint=error.hint,
        trace=error.trace,
        exhausted=error.exhausted,
    )


def _reply(calls: socket.socket, process: int, reply: Reply) -> None:
    if os.getpid() != process:  # user code forked, and its child came back to us
        os._exit(1)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed or replaced
            stream.flush()
    calls.sendall(pack(reply))


if __name__ == "__main__":
    main(sys.argv[1:])
