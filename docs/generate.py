"""Write the generated pages of the documentation from the models themselves: ``docs/job-spec.md``
and ``docs/simulator-files.md``.

``python docs/generate.py`` writes them; with ``--check`` it only says whether they are up to date.
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
from simulator.cluster_file import ClusterSpec
from simulator.workload_file import WorkloadSpec

DOCS = Path(__file__).parent
PAGE = DOCS / "job-spec.md"
HEAD = """# Job spec

The same fields in YAML, over REST and in Python (`rlhfless.JobSpec`). Unknown fields are errors.
Relative paths are relative to the job file. `rlhfless run JOB --dry-run` prints a job with every
default spelt out; `--set key=value` overrides a field by its dotted path; `rlhfless spec-schema`
prints the JSON schema for editors.

This page is generated from `rlhfless/spec.py` and `rlhfless/spec_sections/` (`make docs`).
"""
FILES_PAGE = DOCS / "simulator-files.md"
FILES_HEAD = """# Cluster files and workload files

What [the simulator](simulator.md) is told of machines and of a job's data, in YAML. Unknown fields
are errors; relative paths are relative to the file. Examples are in `examples/clusters/` and
`examples/workloads/`.

This page is generated from `simulator/cluster_file.py` and `simulator/workload_file.py`
(`make docs`).
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
        held = arguments[1]
        inner = isinstance(held, type) and issubclass(held, BaseModel)
        return f"mapping of name to {type_name(held)}" if inner else "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[section](#{annotation.__name__.lower()})"
    names = {
        "str": "text",
        "SecretStr": "secret text",
        "int": "integer",
        "float": "number",
        "bool": "true/false",
    }
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


def pages() -> dict[Path, str]:
    """What each page should hold."""
    return {
        PAGE: "\n".join([HEAD, *_parts(JobSpec, "The job")]),
        FILES_PAGE: "\n".join(
            [
                FILES_HEAD,
                *_parts(ClusterSpec, "The cluster file"),
                *_parts(WorkloadSpec, "The workload file"),
            ]
        ),
    }


def _parts(model: type[BaseModel], title: str) -> list[str]:
    found: dict[type[BaseModel], str] = {}
    sections(model, "", found)
    return [section(each, f"`{path}`" if path else title) for each, path in found.items()]


def main() -> int:
    if "--check" in sys.argv:
        upto_date = [
            page.exists() and page.read_text(encoding="utf-8") == text
            for page, text in pages().items()
        ]
        return 0 if all(upto_date) else 1
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
