"""The zygote: a process that has imported torch and transformers and forks instances off itself.

Importing them costs seconds; forking a process that has them costs milliseconds, and instances
share the memory of the code. The zygote never starts a thread (a fork copies only one) and never
touches CUDA (a forked process cannot use a CUDA context made before the fork; on CUDA machines the
local platform starts fresh processes instead).

``python -m functions.zygote HOME LIFELINE_FD MODULE...`` with a socket as its stdin. One JSON
object a line, in: ``{"spawn": id, "config": HostConfig}``; out: ``{"ready": true}``,
``{"spawned": id, "pid": p}``, ``{"exited": p, "status": s}`` (``s`` as ``Popen.returncode``:
negative is a signal). Ends when that socket or the lifeline does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import msgspec

from functions import host
from rlhfless import lifeline

_encoder = msgspec.json.Encoder()


def main(home: str, lifeline_fd: int, modules: list[str]) -> None:
    lifeline.join(home)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    os.set_blocking(wake_in, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_out)
    _preload(modules)
    zygote = _Zygote(control, lifeline_fd, (wake_in, wake_out))
    zygote.send({"ready": True})
    zygote.loop()
    os._exit(0)  # nothing to tear down, and torch takes its time to


def _preload(modules: list[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a boundary: an instance that needs it will fail and say why
            traceback.print_exc()
    if (num_threads := threading.active_count()) > 1:
        names = [thread.name for thread in threading.enumerate()]
        print(f"{num_threads} threads run, forks may hang: {names}", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()  # collections in the instances then leave the shared pages alone


class _Zygote:
    def __init__(self, control: socket.socket, lifeline_fd: int, wake: tuple[int, int]) -> None:
        self._control = control
        self._lifeline_fd = lifeline_fd
        self._wake = wake
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        self._control.sendall(_encoder.encode(message) + b"\n")

    def loop(self) -> None:
        """Waits for a line, the end of a child, or the end of the controller."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._lifeline_fd, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._lifeline_fd in ready:
                    return
                if self._wake[0] in ready:
                    os.read(self._wake[0], 4096)
                    self._reap()
                if self._control.fileno() in ready and not self._receive():
                    return

    def _receive(self) -> bool:
        data = self._control.recv(65536)
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = msgspec.json.decode(line)
            pid = self._fork(msgspec.convert(message["config"], host.HostConfig))
            self.send({"spawned": message["spawn"], "pid": pid})
        return bool(data)

    def _fork(self, config: host.HostConfig) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._control.close()
                for fd in self._wake:
                    os.close(fd)
                random.seed()
            finally:
                host.run(config)
        return pid

    def _reap(self) -> None:
        """Report children that ended, and end what they left in their groups."""
        while True:
            try:
                # Not yet waited for: while the zombie is there, its pid cannot be another's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            self.send({"exited": ended.si_pid, "status": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
