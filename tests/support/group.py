"""Groups of training workers for tests: processes of this machine that meet over gloo."""

from __future__ import annotations

import multiprocessing as mp
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

PATIENCE_S = 120.0
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch", "tests.support.training"])


def run_group(size: int, program: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``program(group, *arguments)`` on each worker of a group, with one thread; what they return,
    by rank. Fails with the traceback of one that does."""
    from functions.training.group import new_store

    store = new_store()
    pipes = [_context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        _context.Process(
            target=_work, args=(rank, size, store.port, pipes[rank][1], program, arguments)
        )
        for rank in range(size)
    ]
    try:
        for process in processes:
            process.start()
        return _results([receiving for receiving, _ in pipes])
    finally:
        for process in processes:
            process.kill()
            process.join()


def run_apart(program: Callable[..., Any], *arguments: Any) -> Any:
    """``program(*arguments)`` in a process of its own, from which it may fork; what it returns."""
    receiving, sending = _context.Pipe(duplex=False)
    process = _context.Process(target=_run, args=(sending, program, arguments))
    try:
        process.start()
        return _results([receiving])[0]
    finally:
        process.kill()
        process.join()


def _results(pipes: Sequence[Connection]) -> list[Any]:
    results = []
    for rank, pipe in enumerate(pipes):
        assert pipe.poll(PATIENCE_S), f"worker {rank} is not done"
        well, result = pipe.recv()
        assert well, f"worker {rank}:\n{result}"
        results.append(result)
    return results


def _work(
    rank: int,
    size: int,
    port: int,
    pipe: Connection,
    program: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    from functions.training.group import Group, join_store

    def in_group() -> Any:
        import torch

        store = join_store("127.0.0.1", port)
        return program(Group.meet(store, rank, size, torch.device("cpu"), 60.0), *arguments)

    _run(pipe, in_group, ())


def _run(pipe: Connection, program: Callable[..., Any], arguments: Sequence[Any]) -> None:
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        pipe.send((True, program(*arguments)))
    except BaseException:  # the boundary of the process: its test shows it
        pipe.send((False, traceback.format_exc()))
    pipe.close()
    os._exit(0)  # gloo's threads would hold it up
