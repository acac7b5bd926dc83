"""The fields of objects that server-side apply sets, and the labels that select objects. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

Object = dict[str, Any]
Path = tuple[str, ...]
Selector = Mapping[str, Collection[str]]
"""By label, the values that it may have."""
UNOWNED = {("apiVersion",), ("kind",)} | {
    ("metadata", name) for name in ("name", "namespace", "uid", "resourceVersion")
}


def matches(item: Object, selector: Selector) -> bool:
    labels = item["metadata"].get("labels", {})
    return all(labels.get(name) in values for name, values in selector.items())


def parse_selector(text: str) -> dict[str, list[str]]:
    """``a=b,c in (d,e)``."""
    found = {}
    for name, one, several in re.findall(r"([^,=() ]+)(?:=([^,]*)| in \(([^)]*)\))", text):
        found[name] = several.split(",") if several else [one]
    return found


def leaves(body: Object, at_path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of what is not a mapping (lists are owned whole) and of empty mappings."""
    for name, value in body.items():
        path = (*at_path, name)
        if isinstance(value, dict) and value:
            yield from leaves(value, path)
        elif path not in UNOWNED:
            yield path


def at(body: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        body = body.get(name, {}) if isinstance(body, dict) else {}
    return copy.deepcopy(body)


def put(body: Object, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        body = body.setdefault(name, {})
    body[path[-1]] = value


def drop(body: Object, path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        if name not in body:
            return
        body = body[name]
    body.pop(path[-1], None)
