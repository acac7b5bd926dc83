"""The process between the reward function and user code: it outlives neither.

It waits for two things. The worker's end: then it kills what the worker left behind and reports the
wait status on ``control``. The end of ``control`` (the reward function closed it, or died in
whatever way): then it kills the worker with all its descendants. It runs no user code and holds no
lock of anyone's, so nothing the user does can keep it from that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from functions.reward.wire import Exited, pack

GIVE_UP_S = 5.0


def supervise(worker: int, control: socket.socket) -> None:
    """Returns when the worker and every descendant are gone."""
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status = _reap(worker)  # it may have ended before the handler was set
    while status is None:
        ready, _, _ = select.select([wake_in, control.fileno()], [], [])
        if control.fileno() in ready:  # nobody writes to us: this is the end of the peer
            kill_descendants(worker)
            return
        os.read(wake_in, 4096)
        status = _reap(worker)
    kill_descendants(worker)
    with contextlib.suppress(OSError):  # the reward function may be gone as well
        control.sendall(pack(Exited(status=status)))


def _reap(worker: int) -> int | None:
    """Collect ended children; the worker's wait status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                status = ended
    return status


def kill_descendants(worker: int) -> None:
    """SIGKILL the worker's process group and all descendants, and reap them.

    As a subreaper we inherit every orphan, so this ends when no descendant is left; or, if one
    runs as somebody we may not kill, after ``GIVE_UP_S``.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, from ``/proc`` (empty where there is none)."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                children.setdefault(_parent_of(name), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
