"""Loading reward functions and calling them as TRL does (in this process; no worker)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.reward.user_code import RewardCallable, UserCodeError, arguments_of
from functions.reward.wire import Score


@pytest.fixture(autouse=True)
def _leave_no_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _call(target: str, **columns: list[Any]) -> list[float | None]:
    score = Score(
        prompts=["p0", "p1"],
        completions=["c0", "c1"],
        completion_ids=[[1], [2, 3]],
        columns=columns,
        step=7,
    )
    lists = {n: getattr(score, n) for n in ("prompts", "completions", "completion_ids")}
    function = RewardCallable(target)
    try:
        return function(arguments_of(score, lists, columns), 2)
    finally:
        function.close()


def _write(folder: Path, code: str, name: str = "rewards.py") -> str:
    path = folder / name
    path.write_text(code)
    return f"{path}:f"


@pytest.mark.parametrize(
    "code",
    [
        "def f(prompts, completions): return [2.0, None]",
        "def f(completions): return [2.0, None]",
        "def f(*, answer, completions): return [float(answer[0]), None]",
        "def f(completions, answer=None, other='default'):\n"
        "    assert other == 'default'\n    return [float(answer[0]), None]",
        "def f(prompts, completions, completion_ids, **columns):\n"
        "    assert completion_ids == [[1], [2, 3]] and columns['answer'] == ['2', '3']\n"
        "    return [2.0, None]",
        "def f(**everything):\n"
        "    assert set(everything) == {'prompts', 'completions', 'completion_ids', 'answer',\n"
        "                               'trainer_state', 'log_extra', 'log_metric'}\n"
        "    everything['log_metric']('accuracy', 0.5)\n"
        "    everything['log_extra']('parsed', ['a', 'b'])\n"
        "    return [2.0, None]",
        "def f(completions, trainer_state): return [trainer_state.global_step - 5, None]",
        "async def f(completions, **kwargs): return [2.0, None]",
        "import asyncio\n"
        "async def one(c):\n    await asyncio.sleep(0)\n    return 2.0 if c == 'c0' else None\n"
        "async def f(completions, **kwargs):\n"
        "    return await asyncio.gather(*map(one, completions))",
        "class Judge:\n    async def __call__(self, completions, **kw): return [2.0, None]\n"
        "f = Judge()",
        "import functools\ndef g(scale, completions, **kw): return [scale, None]\n"
        "f = functools.partial(g, 2.0)",
        "from helper import f",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    v: float\n"
        "def f(completions): return [P(2.0).v, None]",
    ],
)
def test_a_function_gets_the_arguments_it_accepts(code: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def f(completions): return [2.0, None]")
    assert _call(_write(tmp_path, code), answer=["2", "3"]) == [2.0, None]


def test_a_module_target_and_a_nested_name(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(
        "class Rewards:\n    @staticmethod\n    def f(completions): return [1, 0]"
    )
    assert _call("my_rewards:Rewards.f") == [1.0, 0.0]


def test_a_file_named_like_a_module_in_use(tmp_path: Path) -> None:
    assert _call(_write(tmp_path, "def f(completions): return [1, 0]", "json.py")) == [1.0, 0.0]


def test_an_edit_is_seen_even_within_the_same_second(tmp_path: Path) -> None:
    for value in (1, 2, 3):
        target = _write(tmp_path, f"def f(completions): return [{value}, {value}]")
        assert _call(target) == [value, value]
        del sys.modules["rewards"]


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("def f(x): return []", "needs the argument 'x'", "prompts, completions"),
        ("def f1(completions): return []", "no function 'f'", "did you mean 'f1'?"),
        ("def accuracy(completions): return []", "no function 'f'", "it has: accuracy"),
        ("f = 3", "'f' in {file} is a int", None),
        (
            "import nowhere_to_be_found",
            "could not be imported from {file}: ModuleNotFoundError: No"
            " module named 'nowhere_to_be_found' ({file}:1)",
            None,
        ),
        (
            "x = 1\n1/0",
            "could not be imported from {file}: ZeroDivisionError: division by zero ({file}:2)",
            None,
        ),
        ("def f(:\n", "SyntaxError: invalid syntax ({file}:1)", None),
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({file}:2)", None),
        (
            "def f(completions):\n    return [1][5]",
            "raised IndexError: list index out of range ({file}:2)",
            None,
        ),
        (
            "async def f(completions):\n    raise KeyError('k')",
            "raised KeyError: 'k' ({file}:2)",
            None,
        ),
        ("def f(completions): exit(1)", "raised SystemExit: 1 ({file}:1)", None),
        ("import json\ndef f(completions):\n    json.loads('{')", "({file}:3)", None),
        ("def f(completions): return [1.0]", "returned 1 scores for 2 samples", None),
        ("def f(completions): return [1.0, 'x']", "returned a str ('x'), not a number", None),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    code: str, message: str, hint: str | None, tmp_path: Path
) -> None:
    target = _write(tmp_path, code)
    with pytest.raises(UserCodeError) as caught:
        _call(target)
    file = str(tmp_path / "rewards.py")
    assert message.replace("{file}", file) in caught.value.what
    if hint is not None:
        assert hint in str(caught.value.hint)


def test_missing_places(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"names the file .* which does not exist"):
        RewardCallable(f"{tmp_path}/none.py:f")
    with pytest.raises(UserCodeError, match="names module 'nowhere_at_all', which is not found"):
        RewardCallable("nowhere_at_all:f")
    with pytest.raises(UserCodeError, match=r"is given as 'rewards\.py'"):
        RewardCallable("rewards.py")


def test_the_trace_begins_with_the_users_file(tmp_path: Path) -> None:
    code = "def g():\n    raise ValueError('deep')\nasync def f(completions):\n    g()"
    with pytest.raises(UserCodeError) as caught:
        _call(_write(tmp_path, code))
    trace = caught.value.trace
    assert trace is not None
    assert trace.splitlines()[1].endswith('rewards.py", line 4, in f')
    assert "user_code.py" not in trace
    assert trace.rstrip().endswith("ValueError: deep")


def test_a_function_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    _write(tmp_path, "def helps(**_): ...", "helpers.py")
    code = (
        "from typing import Any\nfrom json import loads\nfrom helpers import helps\n"
        "class Table: ...\ndef _inner(): ...\ndef shortest(**_: Any): ...\ndef exact(**_): ...\n"
    )
    target = _write(tmp_path, code)
    for name, hint in (("f", "it has: shortest, exact"), ("exakt", "did you mean 'exact'?")):
        with pytest.raises(UserCodeError) as told:
            RewardCallable(target.removesuffix("f") + name)
        assert told.value.hint == hint
