"""Write the generated page of the documentation: ``docs/job-spec.md``, from the model itself.

``python docs/generate.py`` writes it; with ``--check`` it only says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rlhfless.spec import JobSpec

PAGE = Path(__file__).with_name("job-spec.md")
HEAD = """# Job spec

The same fields in YAML, over REST and in Python (`rlhfless.JobSpec`). Unknown fields are errors.
Relative paths are relative to the job file. `rlhfless run JOB --dry-run` prints a job with every
default spelt out; `--set key=value` overrides a field by its dotted path; `rlhfless spec-schema`
prints the JSON schema for editors.

This page is generated from `rlhfless/spec.py` (`make docs`).
"""


def type_name(annotation: Any) -> str:
    """A type as a person would write it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " \\| ".join(f"`{a}`" for a in arguments)
    if origin in (Union, UnionType):
        return " \\| ".join(type_name(a) for a in arguments if a is not NoneType)
    if origin in (list, tuple):
        inner = ", ".join(dict.fromkeys(type_name(a) for a in arguments))
        return f"list of {inner}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[section](#{annotation.__name__.lower()})"
    names = {"str": "text", "int": "integer", "float": "number", "bool": "true/false"}
    return names.get(getattr(annotation, "__name__", ""), str(annotation))


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel) or value in (None, [], {}, PydanticUndefined):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def bounds(field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {getattr(m, name):g}"
        for m in _metadata(field)
        for name, sign in signs.items()
        if getattr(m, name, None) is not None
    ]
    return ", ".join(found)


def _metadata(field: FieldInfo) -> list[Any]:
    found = list(field.metadata)
    for annotation in (field.annotation, *get_args(field.annotation)):
        for item in getattr(annotation, "__metadata__", ()):
            found += getattr(item, "metadata", None) or [item]
    return found


def section(model: type[BaseModel], title: str) -> str:
    lines = [f"## {title}", f'<a id="{model.__name__.lower()}"></a>', ""]
    lines += [" ".join((model.__doc__ or "").split()), ""]
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").split()).replace("``", "`").replace("|", "\\|")
        limit = bounds(field)
        kind = type_name(field.annotation) + (f", {limit}" if limit else "")
        lines.append(f"| `{name}` | {kind} | {default(field)} | {meaning} |")
    return "\n".join(lines).replace("``", "`") + "\n"


def sections(model: type[BaseModel], path: str, seen: dict[type[BaseModel], str]) -> None:
    """Collect a model and the sections in it, each once, under the path it is first met at."""
    if model in seen:
        return
    seen[model] = path
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            sections(inner, f"{path}.{name}" if path else name, seen)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def render() -> str:
    found: dict[type[BaseModel], str] = {}
    sections(JobSpec, "", found)
    parts = [section(model, f"`{path}`" if path else "The job") for model, path in found.items()]
    return HEAD + "\n" + "\n".join(parts)


def main() -> int:
    text = render()
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
