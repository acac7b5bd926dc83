"""A job file as the body of a request: YAML read with the bounds that a service needs."""

from __future__ import annotations

from typing import Any

import yaml

from rlhfless.errors import UserError

MAX_BYTES = 1 << 16
"""Of a job file. YAML is read many times more slowly than JSON."""
MAX_DEPTH = 32
"""Of mappings and lists in each other. libyaml builds them by recursion and has no bound."""
TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
"""Media types of such a body; the first is RFC 9512's."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def is_yaml(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() in TYPES


def read_yaml(body: bytes) -> Any:
    """The value that ``body`` says. Raises ``UserError``, also for what no job file needs: aliases
    (some kilobytes can stand for gigabytes), tags, and more than ``MAX_DEPTH``."""
    try:
        text = body.decode()
        _check(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a safe loader, by its name)
    except UnicodeDecodeError as error:
        raise UserError("the body is not text") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UserError(f"the body is not YAML: {error}") from error


def _check(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UserError(f"the body has more than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise UserError(
                "the body has a YAML alias (*name), which is not taken over the network",
                hint="write out what the alias stands for, or send JSON",
            )
        if getattr(event, "tag", None) is not None:
            raise UserError("the body has a YAML tag (!name), which is not taken over the network")
