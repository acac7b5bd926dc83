"""From a job file to a ``JobSpec``: YAML, overrides, paths, and errors a person can act on.

Relative paths in a job file are relative to the file. A value is taken for a path if it starts with
a dot, if something of that name lies there, or if the folder it names does; otherwise it stays as
it is (a name on the Hub, a module). What names something the service keeps (``file-<id>``,
``library:<name>``, ``checkpoint:<job>/<step>``) is never a path.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_secrets import masked, redacted

_SECRET = (("api_key",), ("secret",))
_PATHS = (("model", "path"), ("dataset", "path"), ("evaluation", "dataset", "path"))
_KEPT = re.compile(r"file-[0-9a-f]{24}(/|$)|library:|checkpoint:")


def load_spec(path: str, overrides: Iterable[str] = ()) -> JobSpec:
    """Read a job file, apply ``key=value`` overrides, resolve paths, validate.

    ``overrides`` are dotted paths with YAML values: ``training.steps=5``, ``rewards.0.weight=2``.
    Raises ``UserError`` naming the field and, where it can, the nearest right name.
    """
    raw = read_mapping(path, "job file", "model, dataset, rewards, ...")
    for override in overrides:
        _apply_override(raw, override)
    raw.setdefault("name", _name_from(path))
    return parse_spec(raw, base=os.path.dirname(os.path.abspath(path)))


def parse_spec(raw: dict[str, Any], base: str | None = None) -> JobSpec:
    """Validate a mapping; with ``base``, resolve its relative paths against that folder."""
    try:
        spec = JobSpec.model_validate(raw)
    except ValidationError as error:
        raise user_error(error, JobSpec, "job") from None
    return spec if base is None else _resolve_paths(spec, base)


def read_mapping(path: str, kind: str, holding: str) -> dict[str, Any]:
    """The mapping in a YAML file; errors call it by its ``kind`` and say what it should hold."""
    try:
        with open(path, encoding="utf-8") as file:
            raw = yaml.safe_load(file)
    except FileNotFoundError as error:
        raise UserError(f"there is no {kind} {path}{_nearby(path)}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder; name a {kind} in it") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping with {holding}")
    return raw


def dump_spec(spec: JobSpec) -> str:
    """The resolved spec as YAML, every default spelt out; ``load_spec`` reads it back unchanged but
    for its secrets, which are masked."""
    return yaml.safe_dump(masked(spec), sort_keys=False, allow_unicode=True)


def _name_from(path: str) -> str:
    stem = os.path.splitext(os.path.basename(path))[0].lower()
    cleaned = "".join(c if c.isalnum() and c.isascii() else "-" for c in stem).strip("-")[:63]
    return cleaned.strip("-") or "job"


def _nearby(path: str) -> str:
    folder = os.path.dirname(path) or "."
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    return f"; did you mean {os.path.join(folder, close[0])}?" if close else ""


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not all(key.strip().split(".")):
        raise UserError(f"--set {override}: write key=value, e.g. --set training.steps=5")
    set_field(raw, key.strip(), yaml_value(text, f"--set {override}"), f"--set {override}")


def yaml_value(text: str, asked: str) -> Any:
    """The value that a person wrote in what they ``asked`` for."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{asked}: {text!r} is not a YAML value") from error
    return _number(value) if isinstance(value, str) else value


def set_field(raw: dict[str, Any], path: str, value: Any, asked: str) -> None:
    """Set the field at a dotted ``path`` below ``raw``; sections that are missing are made. Raises
    ``UserError`` that begins with what was ``asked`` where the path leads nowhere."""
    keys = path.split(".")
    node: Any = raw
    for depth, part in enumerate(keys[:-1]):
        if isinstance(node, list):
            node = node[_list_index(node, part, asked)]
        elif isinstance(node, dict):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        else:
            raise UserError(f"{asked}: {'.'.join(keys[:depth])} holds a plain value")
    if isinstance(node, list):
        node[_list_index(node, keys[-1], asked)] = value
    elif isinstance(node, dict):
        node[keys[-1]] = value
    else:
        raise UserError(f"{asked}: {'.'.join(keys[:-1])} holds a plain value")


def _number(text: str) -> str | float:
    """YAML 1.1 takes ``2e-4`` for a string; a person means the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _list_index(node: list[Any], part: str, asked: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise UserError(f"{asked}: {part!r} is no index into a list of {len(node)}")
    return int(part)


def user_error(error: ValidationError, model: type[BaseModel], whole: str) -> UserError:
    """All problems of what should have been a ``model``, one a line, each with its path (``whole``
    where there is none); the nearest name for a wrong one."""
    lines = []
    params = []
    for problem in error.errors():
        loc = tuple(problem["loc"])
        path = ".".join(str(part) for part in loc) or whole
        params.append(path)
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            names = _fields_at(model, loc[:-1])
            close = difflib.get_close_matches(str(loc[-1]), names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(names))}"
            lines.append(f"{path}: unknown field; {hint}")
        elif problem["type"] == "missing":
            lines.append(f"{path}: required")
        else:
            given = problem.get("input") if loc[-1:] not in _SECRET else None
            if isinstance(given, str):
                given = redacted(given)
            shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
            lines.append(f"{path}: {message[:1].lower()}{message[1:]}{shown}")
    return UserError("\n".join(lines), param=params[0] if params else None)


def _fields_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """Names of the fields of the section at a path below ``model``."""
    in_mapping = False
    for part in loc:
        if isinstance(part, int) or in_mapping:
            in_mapping = False
            continue
        field = model.model_fields.get(part)
        in_mapping = field is not None and get_origin(field.annotation) is dict
        section = None if field is None else _section_in(field.annotation)
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if (found := _section_in(argument)) is not None:
            return found
    return None


def _resolve_paths(spec: JobSpec, base: str) -> JobSpec:
    raw = spec.model_dump()
    for keys in _PATHS:
        node: Any = raw
        for key in keys[:-1]:
            node = None if node is None else node[key]
        if node is not None:
            node[keys[-1]] = _resolve(node[keys[-1]], base)
    for reward in raw["rewards"]:
        if reward["python"] is not None:
            target, function = reward["python"].rsplit(":", 1)
            if target.endswith(".py") and not is_kept(target):
                target = os.path.normpath(os.path.join(base, os.path.expanduser(target)))
            reward["python"] = f"{target}:{function}"
        if reward["model"] is not None:
            reward["model"] = _resolve(reward["model"], base)
    return JobSpec.model_validate(raw)


def is_kept(value: str) -> bool:
    """Whether this names something that the service keeps, by ``docs/clients.md``."""
    return _KEPT.match(value) is not None


def _resolve(value: str, base: str) -> str:
    if "://" in value or is_kept(value):
        return value
    expanded = os.path.expanduser(value)
    joined = os.path.normpath(os.path.join(base, expanded))
    in_a_folder = "/" in value and os.path.isdir(os.path.dirname(joined))
    looks_like_path = value.startswith((".", "/", "~")) or os.path.exists(joined) or in_a_folder
    looks_like_file = os.path.splitext(value)[1] in (".jsonl", ".json", ".parquet")
    return joined if looks_like_path or looks_like_file else value
