"""Python rewards in real worker processes: results, and errors that name function and sample."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.reward.process import CallCancelled
from functions.reward.python_scorer import PythonScorer
from functions.reward.scorer import Samples
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import CallInfo, RewardFunction, RewardRequest

Make = Callable[..., PythonScorer]
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


def _samples(completions: list[Any] | None = None, **columns: list[Any]) -> Samples:
    completions = completions or [f"text {i}" for i in range(8)]
    count = len(completions)
    return Samples(
        RewardRequest(
            call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
            functions=[],
            sample_ids=[f"s{i}" for i in range(count)],
            prompts=[f"prompt {i}" for i in range(count)],
            completions=completions,
            completion_ids=[[i] for i in range(count)],
            columns=columns,
        )
    )


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[PythonScorer] = []

    def build(code: str, *, start_timeout_s: float = 120.0, **settings: Any) -> PythonScorer:
        path = tmp_path / "rewards.py"
        path.write_text(code)
        function = RewardFunction(name="mine", kind="python", target=f"{path}:f", **settings)
        made.append(PythonScorer(function, start_timeout_s))
        return made[-1]

    yield build
    for scorer in made:
        scorer.close()


def _error(scorer: PythonScorer, samples: Samples | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        scorer.score(samples or _samples(), NEVER)
    assert str(caught.value).startswith("reward 'mine' ")
    return caught.value


def test_scores_and_the_worker_stays_warm(make: Make) -> None:
    scorer = make(
        "import os\ncalls = []\n"
        "def f(completions, answer, **kw):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3: return [os.getpid(), len(calls)]\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]"
    )
    samples = _samples(["a", "b"], answer=["a", "c"])
    assert scorer.score(samples, NEVER) == [1.0, 0.0]
    assert scorer.score(samples, NEVER) == [1.0, 0.0]
    pid, calls = scorer.score(samples, NEVER)
    assert calls == 3.0
    assert pid is not None
    assert int(pid) != os.getpid()


def test_chat_and_columns_of_any_kind_arrive(make: Make) -> None:
    scorer = make(
        "def f(prompts, completions, completion_ids, meta):\n"
        "    assert completions[0] == [{'role': 'assistant', 'content': 'ä😀'}]\n"
        "    assert completion_ids == [[0], [1]] and meta == [{'k': [1, None]}, 2.5]\n"
        "    assert isinstance(completions, list) and prompts[1] == 'prompt 1'\n"
        "    return [1, 2]"
    )
    chat = [{"role": "assistant", "content": "ä😀"}]
    assert scorer.score(_samples([chat, chat], meta=[{"k": [1, None]}, 2.5]), NEVER) == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        "return [check(c) for c in completions]",
        "return [check(completions[i]) for i in range(len(completions))]",
        "out = []\n    for p, c in zip(prompts, completions): out.append(check(c))\n    return out",
        "return list(map(check, list(completions)))",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "    return list(ThreadPoolExecutor(2).map(check, completions))",
    ],
)
def test_raising_names_the_line_and_the_sample(body: str, make: Make) -> None:
    code = (
        "def check(c):\n    if c == 'text 5': raise ValueError('no number in ' + c)\n"
        "    return 0.0\n"
        f"def f(prompts, completions):\n    {body}"
    )
    error = _error(make(code))
    assert "raised ValueError: no number in text 5" in error.detail
    assert "rewards.py:2)" in error.detail
    assert "sample 's5' (6 of 8, completion 'text 5')" in error.detail
    assert error.trace is not None
    assert "in check" in error.trace


def test_an_async_function_that_raises_names_the_sample(make: Make) -> None:
    code = (
        "import asyncio\n"
        "async def check(c):\n    await asyncio.sleep(0)\n"
        "    return float(c[5:]) / (int(c[5:]) - 6)\n"
        "async def f(completions):\n    return await asyncio.gather(*map(check, completions))"
    )
    error = _error(make(code))
    assert "raised ZeroDivisionError" in error.detail
    assert "rewards.py:4) on sample 's6'" in error.detail


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("[1.0]", "returned 1 scores for 8 samples"),
        ("'text'", "returned a str ('text'), not a list"),
        ("[0.0, float('nan')] + [0.0] * 6", "returned nan on sample 's1' (2 of 8"),
        ("[0.0, 0.0, float('inf')] + [0.0] * 5", "returned inf on sample 's2'"),
        ("[0.0] * 7 + ['good']", "returned a str ('good'), not a number, on sample 's7'"),
    ],
)
def test_bad_results(result: str, message: str, make: Make) -> None:
    assert message in _error(make(f"def f(completions): return {result}")).detail


def test_a_missing_column_and_missing_function(make: Make) -> None:
    error = _error(make("def f(completions, gold): return []"), _samples(answer=["x"] * 8))
    assert "needs the argument 'gold', which is no column" in error.detail
    assert "answer" in str(error.hint)
    assert "no function 'f'" in _error(make("def g(completions): return []")).detail


def test_a_hang_names_the_line_and_the_sample_and_the_next_call_works(make: Make) -> None:
    scorer = make(
        "import time\n"
        "def f(completions):\n"
        "    for c in completions:\n"
        "        if c == 'text 3': time.sleep(1000)\n"
        "    return [0.0] * len(completions)",
        timeout_s=0.5,
    )
    error = _error(scorer)
    assert "took longer than 0.5 s (at " in error.detail
    assert "rewards.py:4 in f) on sample 's3' (4 of 8" in error.detail
    assert scorer.score(_samples(["fine"]), NEVER) == [0.0]


def test_a_hang_that_ignores_signals_and_holds_the_interpreter(make: Make) -> None:
    scorer = make(
        "import re, signal\n"
        "def f(completions):\n"
        "    for s in range(1, 32):\n"
        "        if s not in (9, 19): signal.signal(s, signal.SIG_IGN)\n"
        "    return [float(bool(re.match('(a+)+$', c))) for c in completions]",
        timeout_s=0.5,
    )
    error = _error(scorer, _samples(["a", "a" * 60 + "b"]))
    assert "took longer than 0.5 s" in error.detail
    assert "on sample 's1'" in error.detail


@pytest.mark.parametrize(
    ("crash", "message"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV (segmentation fault)"),
        ("os.abort()", "SIGABRT (aborted)"),
        ("os.kill(os.getpid(), 9)", "SIGKILL (killed, perhaps for want of memory)"),
        ("os._exit(3)", "ended its process with exit code 3"),
        ("os._exit(0)", "ended its process with exit code 0"),
    ],
)
def test_a_crash_names_signal_and_sample_and_the_next_call_works(
    crash: str, message: str, make: Make
) -> None:
    scorer = make(
        "import os\n"
        "def f(completions):\n"
        "    for c in completions:\n"
        "        if c == 'text 4':\n"
        "            print('about to crash')\n"
        f"            {crash}\n"
        "    return [0.0] * len(completions)"
    )
    error = _error(scorer)
    assert message in error.detail
    assert "sample 's4' (5 of 8" in error.detail
    assert "it last printed: about to crash" in str(error.hint)
    if "SIGSEGV" in message:
        assert "rewards.py:6 in f)" in error.detail
    assert scorer.score(_samples(["fine"]), NEVER) == [0.0]


def test_crashing_and_hanging_at_import(make: Make) -> None:
    error = _error(make("import os\nprint('hi')\nos._exit(7)"))
    assert "exit code 7 while it was imported" in error.detail
    error = _error(make("import time\ntime.sleep(1000)", timeout_s=0.1, start_timeout_s=1.0))
    assert "did not finish importing within 1 s (at " in error.detail
    assert "rewards.py:2 in <module>" in error.detail


def test_printing_breaks_nothing_and_is_quoted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = make(
        "import os, subprocess, sys\n"
        "print('imported')\n"
        "def f(completions):\n"
        "    print('x' * 3_000_000)\n"
        "    os.write(1, b'\\x00\\xff raw bytes \\n')\n"
        "    subprocess.run(['echo', 'from a child'])\n"
        "    print('no end of line', end='', file=sys.stderr)\n"
        "    if completions[0] == 'bad': print('\\nlast words'); raise ValueError\n"
        "    sys.stdout.close()\n"
        "    return [1.0] * len(completions)",
        timeout_s=30.0,
    )
    with caplog.at_level("INFO", "functions.reward"):
        assert scorer.score(_samples(), NEVER) == [1.0] * 8
        assert "[mine] imported" in caplog.text
        assert "[mine] from a child" in caplog.text
    make_again = make(Path(scorer._path).read_text())
    error = _error(make_again, _samples(["bad"]))
    assert "from a child" in str(error.hint)
    assert str(error.hint).endswith("last words")


def test_reading_stdin_finds_its_end(make: Make) -> None:
    assert "EOFError" in _error(make("def f(completions): return [input()]")).detail


def test_a_forked_child_that_returns_does_not_answer_for_us(make: Make) -> None:
    scorer = make(
        "import os\n"
        "def f(completions):\n"
        "    if (pid := os.fork()) == 0: return [9.0] * len(completions)\n"
        "    os.waitpid(pid, 0)\n"
        "    return [1.0] * len(completions)"
    )
    for _ in range(3):
        assert scorer.score(_samples(["a"]), NEVER) == [1.0]


def test_user_code_may_use_alarms_as_it_runs_in_the_main_thread(make: Make) -> None:
    scorer = make(
        "import signal, time\n"
        "def late(*_): raise TimeoutError('too slow')\n"
        "def f(completions):\n"
        "    signal.signal(signal.SIGALRM, late)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "    try: time.sleep(1000)\n"
        "    except TimeoutError: return [0.0] * len(completions)"
    )
    assert scorer.score(_samples(["a"]), NEVER) == [0.0]


def test_an_edited_file_is_loaded_anew(make: Make) -> None:
    scorer = make("def f(completions): return [1.0]")
    assert scorer.score(_samples(["a"]), NEVER) == [1.0]
    Path(scorer._path).write_text("def f(completions): return [22.0]")
    assert scorer.score(_samples(["a"]), NEVER) == [22.0]


def test_large_calls_pass(make: Make) -> None:
    scorer = make("def f(completions): return [float(len(c)) for c in completions]")
    assert scorer.score(_samples(["x" * 4_000_000] * 3), NEVER) == [4e6] * 3


def test_the_memory_limit_is_enforced_and_named(make: Make) -> None:
    code = (
        "def f(completions):\n"
        "    for c in completions:\n"
        "        if c == 'text 2': waste = bytearray(2_000_000_000)\n"
        "    return [0.0] * len(completions)"
    )
    scorer = make(code, memory_bytes=1000 << 20)
    error = _error(scorer)
    assert "raised MemoryError" in error.detail
    assert "sample 's2'" in error.detail
    assert "its memory limit is 1000 MiB (memory_mb)" in str(error.hint)
    assert scorer.score(_samples(["fine"]), NEVER) == [0.0]


def test_no_torch_unless_the_user_imports_it(make: Make) -> None:
    scorer = make(
        "import sys\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi', 'httpx', 'pydantic'}\n"
        "def f(completions): return [float(len(heavy & set(sys.modules)))]"
    )
    assert scorer.score(_samples(["a"]), NEVER) == [0.0]


def test_our_own_settings_stay_ours(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_TOKEN", "secret")
    monkeypatch.setenv("JUDGE_KEY", "theirs")
    scorer = make(
        "import os\n"
        "def f(completions): return [float('RLHFLESS_TOKEN' in os.environ),"
        " float(os.environ['JUDGE_KEY'] == 'theirs')]"
    )
    assert scorer.score(_samples(["a", "b"]), NEVER) == [0.0, 1.0]


def test_calls_of_two_threads_take_turns(make: Make) -> None:
    scorer = make(
        "import time\nbusy = []\n"
        "def f(completions):\n"
        "    assert not busy\n"
        "    busy.append(1); time.sleep(0.02); busy.clear()\n"
        "    return [float(c) for c in completions]"
    )
    results: dict[int, list[float | None]] = {}

    def call(number: int) -> None:
        results[number] = scorer.score(_samples([str(number)]), NEVER)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [float(i)] for i in range(6)}


def test_a_call_no_longer_wanted_ends_at_once(make: Make) -> None:
    scorer = make("import time\ndef f(completions):\n    time.sleep(1000)", timeout_s=500)
    unwanted = threading.Event()
    outcome: list[BaseException] = []

    def call() -> None:
        try:
            scorer.score(_samples(), unwanted.is_set)
        except CallCancelled as error:
            outcome.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]  # one runs, one waits its turn
    for thread in threads:
        thread.start()
    unwanted.set()
    for thread in threads:
        thread.join(timeout=30)
    assert len(outcome) == 2


def test_a_killed_supervisor_is_nobodys_fault_and_survived(make: Make) -> None:
    scorer = make(
        "import os\nfrom pathlib import Path\n"
        "def f(completions):\n"
        "    if completions[0] == 'kill': os.kill(os.getppid(), 9)\n"
        "    return [1.0]"
    )
    assert scorer.score(_samples(["a"]), NEVER) == [1.0]
    assert scorer._worker is not None
    os.kill(scorer._worker._process.pid, signal.SIGKILL)
    scorer._worker._process.wait()
    with pytest.raises(TransientError, match="lost its worker"):
        scorer.score(_samples(["a"]), NEVER)
    assert scorer.score(_samples(["a"]), NEVER) == [1.0]


def test_a_failure_leaves_no_descriptor_open(make: Make) -> None:
    scorer = make("import os\ndef f(completions): os._exit(1)")
    _error(scorer)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        _error(scorer)
    assert len(os.listdir("/proc/self/fd")) == before
