"""Nothing outlives its controller.

A controller opens one ``Home``: a private folder (mode 0700, short path: a Unix socket's may have
108 bytes) and a pipe whose write end only the controller holds. Every process it starts inherits
the read end and ``join``s the home: it leads a process group of its own, leaves a note of its pid
in the folder, and kills its group when the pipe ends, which happens however the controller dies.

Two nets hang below, for processes that cannot watch a pipe (redis-server), and for those that are
stuck: a guardian process waits on the same pipe, kills every group noted in the folder and removes
the folder; and the next ``Home`` of this user does the same for folders whose owner holds their
lock no more.

Standard library only: the guardian runs this file as a script, isolated, so that it starts in
milliseconds. Works on Linux and macOS (without ``/proc`` a reused pid cannot be told apart).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

_PREFIX = f"rlhfless-{os.getuid()}-"
_LONGEST_BASE = 60
_TERM_GRACE_S = 1.0


class Home:
    """The controller's end. ``close`` kills what still runs and removes the folder; it blocks for
    some milliseconds (up to seconds if a process lingers), so call it from a thread.

    Raises ``OSError`` where there is no room for the folder or the guardian, and leaves nothing."""

    def __init__(self) -> None:
        sweep()
        with contextlib.ExitStack() as undo:
            self._lock_fd, self.path = _make_folder()
            undo.callback(shutil.rmtree, self.path, ignore_errors=True)
            undo.callback(os.close, self._lock_fd)
            self.lifeline_fd, self._write_fd = os.pipe()
            undo.callback(os.close, self.lifeline_fd)
            undo.callback(os.close, self._write_fd)
            self._guardian = subprocess.Popen(  # noqa: S603  (this file, run by this interpreter)
                [sys.executable, "-I", "-S", __file__, "guard", self.path],
                stdin=self.lifeline_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            undo.pop_all()

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def exec_command(self, command: list[str]) -> list[str]:
        """``command`` wrapped so that it joins this home before it becomes ``command``.

        For programs that cannot watch the lifeline; the guardian sends them SIGTERM first.
        """
        return [sys.executable, "-I", "-S", __file__, "exec", self.path, *command]

    def forget(self, pid: int) -> None:
        """The process is gone and has been waited for; its note goes too."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_note(self.path, pid))

    def close(self) -> None:
        if self._write_fd < 0:
            return
        os.close(self._write_fd)
        self._write_fd = -1
        os.close(self.lifeline_fd)
        try:
            self._guardian.wait(10)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        end(self.path)  # the guardian did it, unless someone killed the guardian
        os.close(self._lock_fd)


def join(home: str, *, gently: bool = False) -> None:
    """Called first thing by a process of the home. ``gently`` asks for SIGTERM before SIGKILL."""
    if os.getpgid(0) != os.getpid():
        os.setsid()
    with open(_note(home, os.getpid()), "w") as file:
        file.write(f"{_started_at(os.getpid())} {'TERM' if gently else 'KILL'}")


def watch(lifeline_fd: int) -> None:
    """Kill this process's group when the controller is gone. Needs a thread, so never before fork.

    SIGKILL, because nobody is left who could use what an orderly end would bring.
    """
    os.set_inheritable(lifeline_fd, False)

    def wait() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def own_folder() -> str:
    """A private folder for a process that has no home and may be killed; once it is gone, the next
    one of this user removes the folder. Raises ``OSError``."""
    sweep()
    _, path = _make_folder()  # the lock is held for as long as this process is there
    return path


def sweep() -> None:
    """End what dead controllers of this user left behind (both they and their guardian died)."""
    base = _base()
    with os.scandir(base) as entries:
        folders = [e.path for e in entries if e.name.startswith(_PREFIX)]
    for folder in folders:
        try:
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end(folder)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def end(home: str) -> None:
    """Kill every group noted in ``home`` and remove the folder; fine if it is gone already."""
    try:
        notes = os.listdir(os.path.join(home, "pids"))
    except FileNotFoundError:
        notes = []
    groups: dict[int, str] = {}
    for name in notes:
        with contextlib.suppress(OSError, ValueError):
            with open(_note(home, int(name))) as file:
                started, _, manner = file.read().partition(" ")
            same = _started_at(int(name)) in (started, "")  # "": it died, its children may not have
            if same and int(name) > 1:  # 0 and less would mean other groups, our own for one
                groups[int(name)] = manner
    gentle = [pid for pid, manner in groups.items() if manner == "TERM"]
    for pid in gentle:
        _kill_group(pid, signal.SIGTERM)
    give_up = time.monotonic() + _TERM_GRACE_S
    while any(_group_lives(pid) for pid in gentle) and time.monotonic() < give_up:
        time.sleep(0.01)
    for pid in groups:
        _kill_group(pid, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


def _make_folder() -> tuple[int, str]:
    """A locked folder. It gets its name only when the lock is held, so no sweep can mistake it."""
    unnamed = tempfile.mkdtemp(prefix="new-" + _PREFIX, dir=_base())
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, unnamed, ignore_errors=True)
        os.mkdir(os.path.join(unnamed, "pids"))
        lock = os.open(os.path.join(unnamed, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(_base(), os.path.basename(unnamed).removeprefix("new-"))
        os.rename(unnamed, path)
        undo.pop_all()
    return lock, path


def _base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) <= _LONGEST_BASE else "/tmp"  # noqa: S108  (mkdtemp is private)


def _note(home: str, pid: int) -> str:
    return os.path.join(home, "pids", str(pid))


def _started_at(pid: int) -> str:
    """The kernel's start time of a process, which tells it from a later one of the same pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _group_lives(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def _main() -> None:
    verb, home, *command = sys.argv[1:]
    if verb == "exec":
        join(home, gently=True)
        os.execv(command[0], command)  # noqa: S606  (a fixed program, no shell)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.read(0, 1)
    end(home)


if __name__ == "__main__":
    _main()
