"""A job of this machine as one that may be submitted: what it names here is uploaded.

    model.path, rewards[].model                    folder -> file-...              (a tar)
    dataset.path, evaluation.dataset.path          file or folder -> file-...      (a folder: a tar)
    rewards[].python                               rewards.py:f -> file-...:f
                                                   or, if it imports modules that lie beside it,
                                                   file-.../rewards.py:f           (a tar of them)

What is no path of this machine stays: names on the Hub, URLs, what the service has already. The
same content is sent once, and not at all if the tenant has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from rlhfless import rest
from rlhfless.client.flows import Flow, Work, visit
from rlhfless.client.python_files import with_siblings
from rlhfless.client.requests import pages, path
from rlhfless.client.uploads import Packed, discard, pack, pack_members, sent
from rlhfless.errors import UserError, of_os_error
from rlhfless.spec import JobSpec, reward_name
from rlhfless.spec_file import is_kept, load_spec, parse_spec
from rlhfless.spec_secrets import require_secrets, revealed


def local_spec(given: JobSpec | Mapping[str, Any] | str) -> JobSpec:
    """The spec in a job file, or of a mapping whose relative paths begin where we are."""
    if isinstance(given, JobSpec):
        return given
    if isinstance(given, str):
        return load_spec(given)
    return parse_spec(dict(given), base=os.getcwd())


def uploaded(spec: JobSpec) -> Flow[dict[str, Any]]:
    """The body to submit for ``spec``, whose files have been uploaded. Raises ``UserError`` naming
    the field whose file is not there."""
    require_secrets(spec)
    for value, param in _named(spec):
        _is_here(value, param)  # all of them, before the first is sent
    body = revealed(spec)
    sender = _Sender()
    body["model"]["path"] = yield from sender.data(body["model"]["path"], "model", "model.path")
    for section, field in ((body, "dataset"), (body["evaluation"] or {}, "evaluation.dataset")):
        if (dataset := section.get("dataset")) is not None:
            dataset["path"] = yield from sender.data(dataset["path"], "dataset", f"{field}.path")
    for number, (reward, described) in enumerate(zip(body["rewards"], spec.rewards, strict=True)):
        if reward["python"] is not None:
            reward["python"] = yield from sender.code(reward["python"], f"rewards.{number}.python")
        elif reward["model"] is not None:
            reward["name"] = reward_name(described)  # not that of an upload
            reward["model"] = yield from sender.data(
                reward["model"], "model", f"rewards.{number}.model"
            )
    return body


_Content: TypeAlias = tuple[str, str, str]


def _content(purpose: str, filename: str, sha256: str) -> _Content:
    """What makes two files one: a dataset's ending says how it is read."""
    return purpose, os.path.splitext(filename)[1], sha256


class _Sender:
    """Sends what is not there yet. ``_known``: ids by what ``_content`` tells of them."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, rest.Purpose], str] = {}
        self._known: dict[_Content, str] | None = None

    def data(self, value: str, purpose: rest.Purpose, param: str) -> Flow[str]:
        """The reference to a file or folder."""
        if not _is_here(value, param):
            return value
        if (value, purpose) not in self._by_path:
            packed: Packed = yield Work(lambda: pack(value))
            self._by_path[value, purpose] = yield from self._send(packed, purpose)
        return self._by_path[value, purpose]

    def code(self, value: str, param: str) -> Flow[str]:
        """The reference to a function in a Python file."""
        place, function = _file_of(value), value.rpartition(":")[2]
        if place is None or not _is_here(place, param):
            return value
        files: dict[str, str] = yield Work(lambda: with_siblings(place))
        if len(files) == 1:
            return f"{yield from self.data(place, 'reward', param)}:{function}"
        name = os.path.basename(place)
        if (place, "reward") not in self._by_path:
            packed: Packed = yield Work(lambda: _tar_of(name, files))
            self._by_path[place, "reward"] = yield from self._send(packed, "reward")
        return f"{self._by_path[place, 'reward']}/{name}:{function}"

    def _send(self, packed: Packed, purpose: rest.Purpose) -> Flow[str]:
        try:
            known = yield from self._there()
            key = _content(purpose, packed.filename, packed.sha256)
            if key not in known:
                known[key] = (yield from sent(packed, purpose)).id
            return known[key]
        finally:
            discard(packed)

    def _there(self) -> Flow[dict[_Content, str]]:
        if self._known is None:
            known: dict[_Content, str] = {}

            def note(file: rest.File) -> bool:
                known[_content(file.purpose, file.filename, file.sha256)] = file.id
                return False

            yield from visit(pages(rest.File, path("files")), note)
            self._known = known
        return self._known


def _named(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Whatever may be a path, and the field it stands in."""
    yield spec.model.path, "model.path"
    yield spec.dataset.path, "dataset.path"
    if spec.evaluation is not None:
        yield spec.evaluation.dataset.path, "evaluation.dataset.path"
    for number, reward in enumerate(spec.rewards):
        if reward.python is not None and (place := _file_of(reward.python)) is not None:
            yield place, f"rewards.{number}.python"
        elif reward.model is not None:
            yield reward.model, f"rewards.{number}.model"


def _file_of(function: str) -> str | None:
    """The Python file of ``file.py:function``; None: it is in a module by name."""
    place = function.rpartition(":")[0]
    return place if place.endswith(".py") else None


def _is_here(value: str, param: str) -> bool:
    """Whether a value of the spec is a path of this machine. Raises ``UserError`` if it is one
    where nothing lies."""
    if "://" in value or is_kept(value):
        return False
    if os.path.exists(value):
        return True
    if os.path.isabs(value) or value.startswith(("./", "../", "~")):
        raise UserError(f"there is no {value}", param=param, hint=f"see {param} of the job")
    return False


def _tar_of(name: str, files: Mapping[str, str]) -> Packed:
    try:
        return pack_members(os.path.splitext(name)[0], files)
    except OSError as error:
        raise of_os_error(f"cannot read what {name} imports", error) from error
