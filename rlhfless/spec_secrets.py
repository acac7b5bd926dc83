"""The secrets of a job spec, kept apart from it: what a dump shows, what a log may say.

Secret are the keys of integrations and webhooks, and the ``user:password@`` of its URLs. ``split``
takes them out, by dotted path, and ``merge`` puts them back; what lies between (a job's record, its
answers, ``job.yaml``) shows ``**********`` in their place. ``redacted`` does the same to text that
others wrote: log lines, events, errors.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from pydantic import SecretStr

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_kept import kept_spec

MASK = "**********"
_SHORTEST = 4
"""A shorter secret is no secret, and a text without it might be unreadable."""
_USERINFO = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
"""``user:password`` of a URL, or ``user`` alone, where many services take a token."""
_NAMES: Any = {"metadata": True, "dataset": {"columns"}, "evaluation": {"dataset": {"columns"}}}
"""Mappings by names of the user's own, as pydantic excludes them: nothing in them is used as a
URL, and a name may have dots in it."""


def split(spec: JobSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec as JSON values with its secrets masked, and the secrets by dotted path:
    ``{"integrations.0.api_key": "...", "rewards.1.http": "https://user:password@host/"}``."""
    masked = spec.model_dump(mode="json")
    secrets: dict[str, str] = {}
    for path, value in _leaves(spec.model_dump(exclude=_NAMES)):
        if isinstance(value, SecretStr):
            secrets[path] = value.get_secret_value()
        elif isinstance(value, str) and _USERINFO.search(value):
            secrets[path] = value
            _put(masked, path, _USERINFO.sub(MASK, value))
    return masked, secrets


def merge(masked: Mapping[str, Any], secrets: Mapping[str, str]) -> JobSpec:
    """What was ``split``, by whatever release, whole again. Raises ``UserError`` naming a secret
    that is missing, ``ValidationError`` as ``kept_spec``."""
    raw = copy.deepcopy(dict(masked))
    for path, secret in secrets.items():
        _put(raw, path, secret)
    spec = kept_spec(raw)
    require_secrets(spec)
    return spec


def revealed(spec: JobSpec) -> dict[str, Any]:
    """The spec as JSON values, secrets and all: what is sent to the service."""
    values, secrets = split(spec)
    for path, secret in secrets.items():
        _put(values, path, secret)
    return values


def masked(spec: JobSpec) -> dict[str, Any]:
    """The spec as JSON values, fit to be kept and shown."""
    return split(spec)[0]


def require_secrets(spec: JobSpec) -> None:
    """Raises ``UserError`` if a secret is but the mask of one: the spec was dumped and read."""
    for path, secret in split(spec)[1].items():
        if MASK in secret:
            raise UserError(
                f"{path}: the secret is masked here",
                param=path,
                hint="write the secret itself, or give it with --set",
            )


def secret_texts(spec: JobSpec) -> frozenset[str]:
    """All that ``redacted`` must take out of what is said about this job."""
    texts: set[str] = set()
    for secret in split(spec)[1].values():
        found = _USERINFO.search(secret)
        if found is None:
            texts.add(secret)
            continue
        password = found.group().partition(":")[2]
        texts |= {found.group(), password, unquote(password)}
    return frozenset(text for text in texts if len(text) >= _SHORTEST)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without the secrets, and without the password of any URL in it."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    return _USERINFO.sub(MASK, text)


def redacted_values(value: Any, secrets: Iterable[str] = ()) -> Any:
    """``redacted`` for every text in JSON values, as an event's data is; keys stay."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, Mapping):
        return {key: redacted_values(child, secrets) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_values(child, secrets) for child in value]
    return value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    children: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    else:
        yield path, value
        return
    for key, child in children:
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def _put(raw: dict[str, Any], path: str, value: str) -> None:
    """Set a leaf that is there."""
    node: Any = raw
    keys = path.split(".")
    for key in keys[:-1]:
        node = node[int(key)] if isinstance(node, list) else node[key]
    last: Any = int(keys[-1]) if isinstance(node, list) else keys[-1]
    node[last] = value
