"""Datasets: rows with a prompt and further columns, and the order in which steps use them.

JSONL, Parquet, and folders written by ``datasets.save_to_disk``. Torch-free; pyarrow and datasets
(the extra ``data``) are imported only for their formats. Errors are ``UserError``s whose ``param``
is the spec path of the section at fault.
"""

from __future__ import annotations

import difflib
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlhfless.errors import UserError
from rlhfless.messages import Prompt
from rlhfless.seeds import derive
from rlhfless.spec import DatasetSpec

PROMPT = "prompt"
_REWARD_ARGUMENTS = {"prompts", "completions", "completion_ids"}


@dataclass(frozen=True)
class Row:
    """``prompt`` is a string or chat messages; ``columns`` are the further columns, for rewards.

    ``where`` names the row for errors, e.g. ``train.jsonl line 3``.
    """

    prompt: Prompt
    columns: dict[str, Any]
    where: str


class Position(msgspec.Struct, frozen=True):
    """Where the data order goes on: row ``index`` of epoch ``epoch``'s order."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class PromptOrder:
    """The order of ``num_rows`` rows over the epochs, decided by ``seed`` alone."""

    num_rows: int
    seed: int
    shuffle: bool
    _orders: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def take(self, position: Position, count: int) -> tuple[list[int], Position]:
        """The next ``count`` rows from ``position``, wrapping into further epochs, and where to go
        on after them."""
        rows: list[int] = []
        epoch, index = position.epoch, position.index
        while len(rows) < count:
            order = self._epoch(epoch)
            taken = order[index : index + count - len(rows)]
            rows += taken
            index += len(taken)
            if index == self.num_rows:
                epoch, index = epoch + 1, 0
        return rows, Position(epoch, index)

    def num_steps(self, rows_per_step: int, steps: int | None, epochs: int) -> int:
        """Steps of the job: ``steps`` if given, else as many as ``epochs`` take; the last one is
        filled up from the epoch after."""
        return steps if steps is not None else -(-self.num_rows * epochs // rows_per_step)

    def _epoch(self, epoch: int) -> list[int]:
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(self.num_rows))
            if self.shuffle:
                random.Random(derive(self.seed, "epoch", epoch)).shuffle(order)
            self._orders.clear()  # one epoch is in use at a time
            self._orders[epoch] = order
        return order


def load_rows(spec: DatasetSpec, param: str) -> list[Row]:
    """Read the dataset a spec names; ``param`` is its spec path (``dataset`` or another)."""
    path = spec.path
    if not os.path.exists(path):
        raise UserError(f"there is no dataset {path}{_nearest_file(path)}", param=f"{param}.path")
    kind = _format(spec, param)
    reader = {"jsonl": _read_jsonl, "parquet": _read_parquet, "hf": _read_hf}[kind]
    rows = reader(spec, param)[: spec.limit]
    if not rows:
        raise UserError(f"the dataset {path} is empty", param=f"{param}.path")
    columns = list(dict.fromkeys(name for raw, _ in rows for name in raw))
    sources = _sources(spec, columns, param)
    return [_row(raw, where, sources, spec, param) for raw, where in rows]


def _format(spec: DatasetSpec, param: str) -> str:
    if spec.format != "auto":
        return spec.format
    if os.path.isdir(spec.path):
        return "hf"
    by_ending = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    ending = os.path.splitext(spec.path)[1].lower()
    if ending not in by_ending:
        raise UserError(
            f"cannot tell the format of {spec.path}",
            param=f"{param}.format",
            hint="set it to jsonl, parquet or hf",
        )
    return by_ending[ending]


_Raw = list[tuple[dict[str, Any], str]]


def _read_jsonl(spec: DatasetSpec, param: str) -> _Raw:
    rows: _Raw = []
    name = os.path.basename(spec.path)
    try:
        with open(spec.path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"{name} line {number}"
                try:
                    raw = json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(
                        f"{where} is not JSON: {error.msg} at column {error.colno}",
                        param=f"{param}.path",
                    ) from error
                if not isinstance(raw, dict):
                    raise UserError(f"{where} is no JSON object", param=f"{param}.path")
                rows.append((raw, where))
    except UnicodeDecodeError as error:
        raise UserError(f"{spec.path} is not UTF-8 text", param=f"{param}.path") from error
    except OSError as error:
        raise UserError(
            f"cannot read {spec.path}: {error.strerror}", param=f"{param}.path"
        ) from error
    return rows


def _read_parquet(spec: DatasetSpec, param: str) -> _Raw:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise _needs_extra("Parquet", param) from error
    try:
        table = pyarrow.parquet.read_table(spec.path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"cannot read {spec.path} as Parquet: {error}", param=f"{param}.path"
        ) from error
    return _numbered(table.to_pylist(), os.path.basename(spec.path))


def _read_hf(spec: DatasetSpec, param: str) -> _Raw:
    try:
        import datasets
    except ImportError as error:
        raise _needs_extra("Hugging Face", param) from error
    try:
        found = datasets.load_from_disk(spec.path)
    except (FileNotFoundError, ValueError, OSError) as error:
        raise UserError(
            f"{spec.path} holds no dataset written by save_to_disk: {error}", param=f"{param}.path"
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if spec.split not in found:
            splits = ", ".join(found)
            raise UserError(
                f"{spec.path} has no split {spec.split!r}; it has {splits}", param=f"{param}.split"
            )
        found = found[spec.split]
    return _numbered(found.to_list(), os.path.basename(spec.path.rstrip("/")))


def _numbered(rows: Iterable[dict[str, Any]], name: str) -> _Raw:
    return [(raw, f"{name} row {number}") for number, raw in enumerate(rows, 1)]


def _sources(spec: DatasetSpec, columns: list[str], param: str) -> dict[str, str]:
    """Name in the row -> column of the data. A renamed column is no longer reached by its own name,
    and a column whose name a rename has taken is out of reach."""
    sources = dict(spec.columns)
    for name, source in sources.items():
        if source not in columns:
            raise _no_column(source, columns, f"{param}.columns.{name}")
    if PROMPT not in sources and PROMPT not in columns:
        error = _no_column(PROMPT, columns, f"{param}.columns.{PROMPT}")
        error.hint = f"name the prompt's column, e.g. --set {param}.columns.{PROMPT}={columns[0]}"
        raise error
    renamed = set(sources.values())
    sources |= {c: c for c in columns if c not in sources and c not in renamed}
    for name in _REWARD_ARGUMENTS & sources.keys():
        raise UserError(
            f"the column {name!r} has the name of an argument every reward gets",
            param=f"{param}.columns",
            hint=f"rename it, e.g. --set {param}.columns.my_{name}={sources[name]}",
        )
    return sources


def _no_column(name: str, columns: list[str], param: str) -> UserError:
    close = difflib.get_close_matches(name, columns, n=1)
    nearest = f"; did you mean {close[0]}?" if close else ""
    return UserError(
        f"there is no column {name!r} among {', '.join(columns)}{nearest}", param=param
    )


def _row(
    raw: dict[str, Any], where: str, sources: dict[str, str], spec: DatasetSpec, param: str
) -> Row:
    values = {name: raw.get(column) for name, column in sources.items()}
    prompt = _prompt(values.pop(PROMPT), where, spec, param)
    return Row(prompt, values, where)


def _prompt(value: Any, where: str, spec: DatasetSpec, param: str) -> Prompt:
    chat = spec.chat if spec.chat is not None else spec.system_prompt is not None
    if isinstance(value, str):
        if not value:
            raise UserError(f"{where}: the prompt is empty", param=f"{param}.columns.{PROMPT}")
        if not chat:
            return value
        value = [{"role": "user", "content": value}]
    elif not _is_chat(value):
        raise UserError(
            f"{where}: the prompt must be text or a list of chat messages with role and content, "
            f"not {type(value).__name__}",
            param=f"{param}.columns.{PROMPT}",
        )
    if spec.system_prompt is not None:
        return [{"role": "system", "content": spec.system_prompt}, *value]
    return list(value)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and "role" in m and "content" in m for m in value)
    )


def _needs_extra(what: str, param: str) -> UserError:
    return UserError(
        f"reading {what} data needs further packages",
        param=f"{param}.format",
        hint="pip install 'rlhfless[data]'",
    )


def _nearest_file(path: str) -> str:
    folder = os.path.dirname(path) or "."
    try:
        names = os.listdir(folder)
    except OSError:
        return f" (nor a folder {folder})"
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    return f"; did you mean {os.path.join(folder, close[0])}?" if close else ""
