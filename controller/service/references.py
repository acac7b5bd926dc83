"""How a job of the service names what goes into it. Pure: ``controller.service.reference_check``
asks whether it is there, ``controller.service.inputs`` fetches it.

    file-<24 hex>              a file of the tenant's; of a reward with its function behind a colon
    file-<24 hex>/rewards.py   a file inside of one that is a tar (rewards)
    library:<name>             something below the operator's library
    checkpoint:<job>/<step>    a checkpoint of a job of the tenant's (models)
    https://...                a dataset that is fetched; a reward, tracker or webhook that is asked
    org/name                   a model or dataset on the Hub

Nothing else is a name: no path of the server's, whatever it is spelt like.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec

Kind = Literal["model", "dataset", "reward", "reward_model", "url"]

FILE_ID = re.compile(r"file-[0-9a-f]{24}")
_CHECKPOINT = re.compile(r"checkpoint:(job-[0-9a-f]{28})/(0|[1-9][0-9]{0,8})")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}(\.[A-Za-z_][A-Za-z0-9_]{0,127})*")

_HINTS: dict[Kind, str] = {
    "model": "write file-... (an uploaded tar), library:<name>, checkpoint:<job>/<step> or "
    "org/name (the Hub); GET /v1/models lists what there is",
    "dataset": "upload it (POST /v1/files) and write its id, or write library:<name>, an https URL "
    "or org/name (the Hub)",
    "reward": "upload it (POST /v1/files) and write file-...:function, or write "
    "library:<name>.py:function",
    "reward_model": "write file-... (an uploaded tar), library:<name> or org/name (the Hub)",
    "url": "write an http or https URL",
}


@dataclass(frozen=True)
class FileReference:
    """``member``: a file inside it; empty: the file itself."""

    id: str
    member: str = ""


@dataclass(frozen=True)
class LibraryReference:
    name: str


@dataclass(frozen=True)
class CheckpointReference:
    job: str
    step: int


@dataclass(frozen=True)
class UrlReference:
    url: str


@dataclass(frozen=True)
class HubReference:
    name: str


Reference = FileReference | LibraryReference | CheckpointReference | UrlReference | HubReference


@dataclass(frozen=True)
class Named:
    """A reference and the field it stands in. ``function``: of a reward; ``format``: of a dataset,
    as the spec has it."""

    param: str
    kind: Kind
    reference: Reference
    function: str = ""
    format: str = ""


def references(spec: JobSpec) -> list[Named]:
    """All that a job names, in the order of its fields. Raises ``UserError`` naming the first field
    that holds no reference."""
    found = [Named("model.path", "model", parse(spec.model.path, "model", "model.path"))]
    datasets = {"dataset.path": spec.dataset}
    if spec.evaluation is not None:
        datasets["evaluation.dataset.path"] = spec.evaluation.dataset
    for param, dataset in datasets.items():
        reference = parse(dataset.path, "dataset", param)
        found.append(Named(param, "dataset", reference, format=dataset.format))
    for index, reward in enumerate(spec.rewards):
        param = f"rewards.{index}"
        if reward.python is not None:
            place, _, function = reward.python.rpartition(":")
            reference = parse(place, "reward", f"{param}.python")
            if not _FUNCTION.fullmatch(function):
                raise UserError(f"{function[:80]!r} names no function", param=f"{param}.python")
            found.append(Named(f"{param}.python", "reward", reference, function))
        elif reward.model is not None:
            reference = parse(reward.model, "reward_model", f"{param}.model")
            found.append(Named(f"{param}.model", "reward_model", reference))
        elif reward.http is not None:
            found.append(Named(f"{param}.http", "url", UrlReference(reward.http)))
    for index, integration in enumerate(spec.integrations):
        if integration.url is not None:
            reference = UrlReference(integration.url)
            found.append(Named(f"integrations.{index}.url", "url", reference))
    for index, webhook in enumerate(spec.webhooks):
        found.append(Named(f"webhooks.{index}.url", "url", UrlReference(webhook.url)))
    return found


def parse(value: str, kind: Kind, param: str) -> Reference:
    """Raises ``UserError`` naming the field ``param``."""
    file, _, member = value.partition("/")
    if FILE_ID.fullmatch(file):
        if value != file and (not member or kind != "reward"):
            raise _refused(value, kind, param)
        if member and not member.endswith(".py"):
            raise UserError(f"{member[:80]!r} is no .py file", param=param, hint=_HINTS[kind])
        return FileReference(file, check_name(member, param) if member else "")
    if value.startswith("library:"):
        return LibraryReference(check_name(value.removeprefix("library:"), param))
    if kind == "model" and (found := _CHECKPOINT.fullmatch(value)):
        return CheckpointReference(found[1], int(found[2]))
    if kind == "dataset" and value.startswith(("http://", "https://")):
        return UrlReference(value)
    if kind != "reward" and _HUB.fullmatch(value) and ".." not in value and "--" not in value:
        return HubReference(value)
    raise _refused(value, kind, param)


def check_name(name: str, param: str) -> str:
    """A name of one or more plain segments: ``name`` itself, which cannot lead out of a folder."""
    segments = name.split("/")
    if len(segments) > 16 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise UserError(
            f"{name[:80]!r} is no name of something inside it",
            param=param,
            hint="use names of letters, digits and . _ + - with / between them",
        )
    return name


def file_ids(spec: Mapping[str, Any]) -> set[str]:
    """Ids of the uploaded files that a stored job, of whatever release, names anywhere."""
    return set(FILE_ID.findall(json.dumps(spec)))


def checkpoint_job(spec: Mapping[str, Any]) -> str | None:
    """The job with a checkpoint of which a stored job begins."""
    model = spec.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    found = _CHECKPOINT.fullmatch(path) if isinstance(path, str) else None
    return found[1] if found else None


def _refused(value: str, kind: Kind, param: str) -> UserError:
    return UserError(
        f"{value[:200]!r} names nothing that a job of the service can use",
        param=param,
        hint=_HINTS[kind],
    )
