"""The API's document at ``/openapi.json``: what FastAPI derives from the routes, made whole.

Every route that needs a key tells of the refusals that it shares with all others, as the problem
documents they are; bodies that the routes read themselves are described, the job spec among them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from rlhfless.rest import Problem
from rlhfless.spec import JobSpec

_PROBLEM = {
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
}
_SHARED = {
    "401": "No key, or one that is not valid.",
    "403": "The key's scope does not reach so far.",
    "422": "The request cannot work as it is.",
    "429": "Too many attempts with keys that are not valid, or too much at once.",
    "503": "The service cannot answer now; ask again.",
}
_OF_AN_ID = {"404": "There is no such thing, or it is another tenant's."}
_OF_A_CHANGE = {
    "409": "It cannot be done as things stand, or the idempotency key was used for something else.",
    "413": "The body is too large.",
}
_METHODS = ("get", "post", "put", "patch", "delete")


class Api(FastAPI):
    """An app with a whole document."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _whole(super().openapi())
        return self.openapi_schema


def _whole(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model, name in ((JobSpec, "JobSpec"), (Problem, "Problem")):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {name: schema}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for methods in document["paths"].values():
        for method, operation in methods.items():
            if method in _METHODS and "security" in operation:
                _tell_refusals(method, operation)
    return document


def _tell_refusals(method: str, operation: dict[str, Any]) -> None:
    refusals = dict(_SHARED)
    if any(p["in"] == "path" or p["name"] == "after" for p in operation.get("parameters", ())):
        refusals |= _OF_AN_ID
    if method != "get":
        refusals |= _OF_A_CHANGE
    responses = operation["responses"]
    for status, text in sorted(refusals.items()):
        responses[status] = {"description": text, "content": _PROBLEM}
    responses["default"] = {"description": "Any other refusal.", "content": _PROBLEM}
