"""A job spec that was stored, read by another release than wrote it.

While replicas are replaced one by one, two releases share one job store. The older one must not
stumble over what the newer accepts: it looks at such a job, and leaves it to those who know all of
its fields (``JobSpec.model_validate`` refuses what it does not know).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rlhfless.spec import JobSpec

_UNKNOWN = "extra_forbidden"


def kept_spec(values: Mapping[str, Any]) -> JobSpec:
    """The spec without the fields that this release does not know. Raises ``ValidationError`` for
    what it cannot be told without."""
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors() if each["type"] == _UNKNOWN]
        if not unknown:
            raise
    known = copy.deepcopy(dict(values))
    for path in unknown:
        node: Any = known
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]
    return JobSpec.model_validate(known)
