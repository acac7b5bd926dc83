"""User code: load a reward function, call it as TRL does, and explain what went wrong.

Runs in the worker process only. Every fault of the user's becomes a ``UserCodeError`` whose
``what`` completes "reward 'x' ...".
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from functions.reward.scores import BadScore, to_scores
from functions.reward.tracked import last_sample, sample_in_traceback
from functions.reward.wire import NO_SAMPLE, Score

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class UserCodeError(Exception):
    """Fields as of ``wire.Failed``."""

    def __init__(
        self,
        what: str,
        *,
        sample: int = NO_SAMPLE,
        hint: str | None = None,
        trace: str | None = None,
        exhausted: bool = False,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.sample = sample
        self.hint = hint
        self.trace = trace
        self.exhausted = exhausted


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Compiles the source every time: a .pyc can hide an edit made within the same second."""

    def path_stats(self, path: str) -> Any:
        raise OSError(f"{path} is not cached")


def load(target: str) -> tuple[Callable[..., Any], str]:
    """The function ``file.py:name`` or ``module:name`` and its source file ("" if it has none)."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UserCodeError(f"is given as {target!r}", hint="write file.py:function")
    try:
        module = _load_file(place) if place.endswith(".py") else importlib.import_module(place)
    except UserCodeError:
        raise
    except BaseException as error:  # the user's import code, SystemExit included: a task boundary
        if isinstance(error, ModuleNotFoundError) and error.name == place:
            hint = "give a .py file's path, or install the module where functions run"
            raise UserCodeError(f"names module {place!r}, which is not found", hint=hint) from error
        raise explain(error, f"could not be imported from {place}:", "") from error
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    path = getattr(module, "__file__", None) or ""
    if function is None:
        defined = _defined(module)
        near = difflib.get_close_matches(name, defined, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(defined) or 'none'}"
        raise UserCodeError(f"is not in {place}: there is no function {name!r}", hint=hint)
    if not callable(function):
        raise UserCodeError(f"is no function: {name!r} in {place} is a {type(function).__name__}")
    return function, path


def _defined(module: types.ModuleType) -> list[str]:
    """Names of its functions, or of those of modules inside it; not of what it imports from
    elsewhere, nor of what is private."""
    inside = f"{module.__name__}."
    return [
        name
        for name, value in vars(module).items()
        if inspect.isroutine(value)
        and not name.startswith("_")
        and f"{value.__module__}.".startswith(inside)
    ]


def _load_file(path: str) -> types.ModuleType:
    """Run a file as a module, with its folder importable as it is for a script."""
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(full):
        raise UserCodeError(f"names the file {path!r}, which does not exist", hint=f"tried {full}")
    sys.path.insert(0, os.path.dirname(full))
    name = os.path.splitext(os.path.basename(full))[0]
    if name in sys.modules or name in sys.stdlib_module_names:
        name = f"reward_{name}"
    loader = _FreshLoader(name, full)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class RewardCallable:
    """A loaded reward function, called with the keyword arguments it accepts."""

    def __init__(self, target: str) -> None:
        self.function, self.path = load(target)
        self._accepts = _accepted(self.function)
        self._runner = asyncio.Runner()  # one loop for all calls: user clients stay bound to it

    def __call__(self, arguments: Mapping[str, Any], num_samples: int) -> list[float | None]:
        """Checked scores. Raises ``UserCodeError``."""
        try:
            result = self.function(**self._keywords(arguments))
            if inspect.isawaitable(result):
                result = self._runner.run(_await(result))
            return to_scores(result, num_samples)
        except UserCodeError:
            raise
        except BadScore as error:
            raise UserCodeError(f"returned {error}", sample=error.sample) from error
        except BaseException as error:  # user code, SystemExit included: a task boundary
            raise explain(error, "raised", self.path) from error

    def close(self) -> None:
        self._runner.close()

    def _keywords(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._accepts is None:
            return dict(arguments)
        missing = [n for n, needed in self._accepts.items() if needed and n not in arguments]
        if missing:
            raise UserCodeError(
                f"needs the argument {missing[0]!r}, which is no column of the dataset",
                hint=f"there are: {', '.join(arguments)}",
            )
        return {name: value for name, value in arguments.items() if name in self._accepts}


async def _await(result: Awaitable[Any]) -> Any:
    return await result


def _accepted(function: Callable[..., Any]) -> dict[str, bool] | None:
    """Keyword arguments a function takes (True: required), or None if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some callables of C have no signature
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p.default is p.empty for p in parameters if p.kind in named}


def arguments_of(
    call: Score, lists: Mapping[str, Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """What TRL 1.16 passes (``GRPOTrainer._calculate_rewards``), less ``environments``.

    ``trainer_state`` has ``global_step`` only; ``log_metric`` and ``log_extra`` print a line, which
    ends in the function's log.
    """
    return {
        **columns,
        "trainer_state": SimpleNamespace(global_step=call.step),
        "log_extra": _log_extra,
        "log_metric": _log_metric,
        **lists,
    }


def _log_metric(name: str, value: float) -> None:
    print(f"metric {name}={value}")


def _log_extra(column: str, values: list[Any]) -> None:
    print(f"extra {column}: {str(values)[:200]}")


def explain(error: BaseException, verb: str, path: str) -> UserCodeError:
    """The last line of the user's traceback with its place, and all of it as ``trace``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    inside = [f for f in frames if path and os.path.abspath(f.filename) == os.path.abspath(path)]
    place = (inside or frames)[-1] if frames else None
    where = f" ({place.filename}:{place.lineno})" if place else ""
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError) and error.filename:
        line, where = f"{type(error).__name__}: {error.msg}", f" ({error.filename}:{error.lineno})"
    trace = "".join(
        traceback.format_exception(type(error), error, _from_file(error.__traceback__, path))
    )
    return UserCodeError(
        f"{verb} {line[:500]}{where}", trace=trace, exhausted=isinstance(error, MemoryError)
    )


def locate(error: UserCodeError, call: Score, notes: memoryview, path: str) -> int:
    """The index of the sample an error is about, or ``NO_SAMPLE``. ``path``: the user's file."""
    if error.sample != NO_SAMPLE or error.__cause__ is None:
        return error.sample
    samples = (call.completions, call.completion_ids, call.prompts, *call.columns.values())
    inner = sample_in_traceback(_from_file(error.__cause__.__traceback__, path), samples)
    return inner if inner != NO_SAMPLE else last_sample(notes, len(call.completions))


def _users_part(start: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the first frame that is neither ours nor the import system's."""
    while start is not None and not _is_users(start.tb_frame.f_code.co_filename):
        start = start.tb_next
    return start


def _from_file(start: types.TracebackType | None, path: str) -> types.TracebackType | None:
    """The traceback from the first frame of the user's own file (asyncio's may lie before it)."""
    found = start
    while found is not None and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    return found or _users_part(start)


def _is_users(filename: str) -> bool:
    return not filename.startswith((_OURS, "<frozen importlib"))
