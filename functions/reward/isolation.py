"""What the operating system does for us: parent-death signals, subreaping, no network, limits.

Called in the worker's processes while they have a single thread. Linux only where noted; elsewhere
the functions say so through their result and nothing is claimed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_LOOPBACK_RUNNING = 0x1 | 0x8 | 0x40

LINUX = sys.platform == "linux"


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` is gone (Linux). Call it in the child."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel knew our wish
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux), so none gets out of sight."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_memory(num_bytes: int) -> None:
    """Bound this process's address space; 0 means no bound. Never dump core."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if num_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def leave_network() -> str | None:
    """Move this process into a network namespace of its own, with nothing but loopback (Linux).

    None on success, else the reason it was refused. With the right to do so (root) the network
    namespace alone is made; else inside a new user namespace that keeps our user and group ids.
    """
    if not LINUX:
        return f"{sys.platform} has no network namespaces"
    uid, gid = os.geteuid(), os.getegid()
    if _unshare(_CLONE_NEWNET) != 0:
        failure = _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        if failure != 0:
            return f"the kernel refused a network namespace ({os.strerror(failure)})"
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    with contextlib.suppress(OSError):  # loopback is a convenience for user code, not a promise
        _loopback_up()
    return None


def _unshare(flags: int) -> int:
    """0 or the errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        return errno.ENOSYS
    return 0 if libc.unshare(flags) == 0 else ctypes.get_errno()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", _IFF_UP_LOOPBACK_RUNNING)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, request)
