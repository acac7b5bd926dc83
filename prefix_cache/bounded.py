"""Storage calls that may hang: run them on the side, and go on without them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
THREADS = 8
"""Of one ``run_bounded``: enough to hide the latency of a remote store."""


def run_bounded(tasks: Sequence[Callable[[], T]], stall_s: float) -> list[T | Exception]:
    """Results of the tasks, run side by side; an exception where one failed.

    When no task has ended for ``stall_s`` seconds, those that have not are given up: their result
    is a ``TimeoutError``. What hangs keeps its daemon thread until it returns, to no effect; tasks
    that had not begun never do.
    """
    outcome: list[T | Exception] = [TimeoutError("the store does not answer") for _ in tasks]
    ended: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()
    waiting = iter(range(len(tasks)))
    lock = threading.Lock()
    given_up = False

    def work() -> None:
        while True:
            with lock:
                number = None if given_up else next(waiting, None)
            if number is None:
                return
            try:
                result: T | Exception = tasks[number]()
            except Exception as error:  # the task boundary: it is handed to the caller
                result = error
            ended.put((number, result))

    for _ in range(min(THREADS, len(tasks))):
        threading.Thread(target=work, name="kv-store", daemon=True).start()
    try:
        for _ in tasks:
            number, result = ended.get(timeout=stall_s)
            outcome[number] = result
    except queue.Empty:
        pass
    finally:
        with lock:
            given_up = True
    return outcome
