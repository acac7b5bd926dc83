"""Whether a manifest is one that its API server would take: misspelt fields, wrong types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

KUBERNETES = "1.34"
_SCHEMAS = Path(__file__).parents[1] / "deploy" / "schemas"


def check_manifest(manifest: dict[str, Any]) -> None:
    """Raises ``ValidationError`` for what is wrong with it, ``SchemaNotFoundError`` for a kind of
    which nothing is known: what cannot be checked does not pass."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    schema = _SCHEMAS / f"{version.replace('/', '-')}-{kind.lower()}.json"
    if schema.exists():
        jsonschema.validate(manifest, json.loads(schema.read_text(encoding="utf-8")))
        return
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
