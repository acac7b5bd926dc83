"""Nothing a reward starts outlives it, whatever ends it; and it has no network unless asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.reward import python_scorer
from functions.reward.python_scorer import PythonScorer
from functions.reward.scorer import Samples
from functions.reward.supervise import descendants
from rlhfless.errors import UserError
from rlhfless.messages import CallInfo, RewardFunction, RewardRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees as Linux has them")
ROOT = Path(__file__).parents[3]

# Starts children in every way that is hard to find again: in a session of its own, as a daemon
# whose parent has ended, ignoring signals; and writes their pids to a file.
SPAWN = """
import os, subprocess, sys, time
from pathlib import Path

def spawn(folder):
    sleeper = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
    plain = subprocess.Popen([sys.executable, "-c", sleeper])
    session = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    daemon = subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; print(subprocess.Popen("
         f"[sys.executable, '-c', {sleeper!r}], start_new_session=True,"
         "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"],
        capture_output=True, text=True, check=True)
    pids = [os.getpid(), plain.pid, session.pid, int(daemon.stdout)]
    Path(folder, "pids.part").write_text(" ".join(map(str, pids)))
    os.rename(Path(folder, "pids.part"), Path(folder, "pids"))
"""


def _samples(text: str) -> Samples:
    return Samples(
        RewardRequest(
            call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
            functions=[],
            sample_ids=["s0"],
            prompts=["p"],
            completions=[text],
            completion_ids=[[0]],
        )
    )


def _never() -> bool:
    return False


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., PythonScorer]]:
    made: list[PythonScorer] = []

    def build(code: str, **settings: Any) -> PythonScorer:
        path = tmp_path / "rewards.py"
        path.write_text(SPAWN + code)
        made.append(
            PythonScorer(RewardFunction(name="mine", kind="python", target=f"{path}:f", **settings))
        )
        return made[-1]

    yield build
    for scorer in made:
        scorer.close()


def _pids(folder: Path) -> list[int]:
    _wait(lambda: (folder / "pids").exists())
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def _wait(condition: Callable[[], bool]) -> None:
    """Polls; a condition that never comes true is the test's failure."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("end", ["time.sleep(1000)", "os._exit(1)", "os.kill(os.getpid(), 11)"])
def test_a_time_out_or_crash_ends_all_children(
    end: str, make: Callable[..., PythonScorer], tmp_path: Path
) -> None:
    others = set(descendants(os.getpid()))  # of earlier tests, such as a resource tracker
    scorer = make(
        f"def f(completions):\n    spawn(completions[0])\n    {end}",
        timeout_s=2.0 if "sleep" in end else 60.0,
    )
    with pytest.raises(UserError):
        scorer.score(_samples(str(tmp_path)), _never)
    assert all(map(_gone, _pids(tmp_path)))
    assert set(descendants(os.getpid())) <= others


def test_closing_ends_all_children(make: Callable[..., PythonScorer], tmp_path: Path) -> None:
    others = set(descendants(os.getpid()))
    scorer = make("def f(completions):\n    spawn(completions[0])\n    return [1.0]")
    assert scorer.score(_samples(str(tmp_path)), _never) == [1.0]
    assert not any(map(_gone, _pids(tmp_path)))
    scorer.close()
    assert all(map(_gone, _pids(tmp_path)))
    assert set(descendants(os.getpid())) <= others


@pytest.mark.parametrize("during", ["call", "idle"])
def test_kill_minus_9_of_the_reward_function_leaves_nothing(during: str, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        SPAWN + "def f(completions):\n    spawn(completions[0])\n"
        f"    {'time.sleep(1000)' if during == 'call' else 'return [1.0]'}"
    )
    code = f"""
import time
from functions.reward.process import Worker
from functions.reward.wire import Load, Score, pack
worker = Worker("mine", network=False)
worker.exchange(None, 60, lambda: False)
worker.exchange(pack(Load(target={str(tmp_path / "rewards.py")!r} + ":f", memory_bytes=0)), 60,
                lambda: False)
worker.exchange(pack(Score(prompts=["p"], completions=[{str(tmp_path)!r}], completion_ids=[[0]],
                           columns={{}}, step=1)), 600, lambda: False)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        try:
            pids = _pids(tmp_path)
            below = descendants(parent.pid)
            assert {*pids} <= {*below}, "the daemon, too, is still in sight"
        finally:
            parent.kill()
    _wait(lambda: all(map(_gone, below)))


def test_the_worker_outlives_the_thread_that_started_it(
    make: Callable[..., PythonScorer],
) -> None:
    scorer = make("def f(completions): return [float(os.getpid())]")
    pids: list[float | None] = []

    def call() -> None:
        pids.extend(scorer.score(_samples("a"), _never))

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert pids[0] == pids[1]


CONNECT = """
import socket
def f(completions):
    port = int(completions[0])
    with socket.socket() as own:  # loopback of its own is fine
        own.bind(("127.0.0.1", 0))
        own.listen()
        socket.create_connection(own.getsockname(), timeout=5).close()
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return [1.0]
    except OSError:
        return [0.0]
"""


@pytest.mark.parametrize("network", [False, True])
def test_the_network_is_there_only_when_asked_for(
    network: bool, make: Callable[..., PythonScorer], caplog: pytest.LogCaptureFixture
) -> None:
    python_scorer._warn_exposed.cache_clear()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        reached = make(CONNECT, network=network).score(_samples(port), _never) == [1.0]
    if network:
        assert reached
    elif reached:  # a kernel that refuses namespaces: then it has to be said
        assert "reward code can reach the network" in caplog.text
    else:
        assert "reward code can reach the network" not in caplog.text


def test_a_refused_namespace_is_reported_once(
    make: Callable[..., PythonScorer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The worker is started with a kernel whose ``unshare`` always fails."""
    python_scorer._warn_exposed.cache_clear()
    (tmp_path / "sitecustomize.py").write_text(
        "import errno\nimport functions.reward.isolation as isolation\n"
        "isolation._unshare = lambda flags: errno.EPERM\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scorer = make("def f(completions): return [1.0]\n")
    assert scorer.score(_samples("a"), _never) == [1.0]
    scorer.close()
    assert scorer.score(_samples("a"), _never) == [1.0]
    assert caplog.text.count("reward code can reach the network: the kernel refused") == 1


def test_ctrl_c_at_the_terminal_does_not_reach_user_code(
    make: Callable[..., PythonScorer],
) -> None:
    scorer = make("def f(completions): return [float(os.getsid(0))]")
    assert scorer.score(_samples("a"), _never) != [float(os.getsid(0))]
