"""What every route of the API shares: who asks, the body, and how refusals look."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from controller.service.guard import Guard
from controller.service.keys import ApiKey, ApiKeys, Scope
from controller.service.refusals import (
    StillWorkingError,
    TooLargeError,
    TooManyRequestsError,
    as_told,
)
from controller.service.yaml_body import MAX_BYTES as MAX_YAML_BYTES
from controller.service.yaml_body import is_yaml, read_yaml
from rlhfless.errors import NotFoundError, RlhflessError, UnauthenticatedError, UserError
from rlhfless.spec_file import user_error

M = TypeVar("M", bound=BaseModel)
_SEE_DOCS = "/docs shows what there is"
_BEARER = HTTPBearer(
    scheme_name="key", bearerFormat="rlk_...", description="An API key.", auto_error=False
)


class Needs:
    """A dependency: the key of whoever asks, which must have a scope. The API's document shows it
    as security."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(
        self, request: Request, _: Annotated[object, Security(_BEARER)] = None
    ) -> ApiKey:
        keys: ApiKeys = request.app.state.keys
        guard: Guard = request.app.state.guard
        address = request.client.host if request.client else None
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        text = text.strip() if kind.lower() == "bearer" else ""
        guard.check(address, text)
        try:
            key = await keys.authenticate(text)
        except UnauthenticatedError as error:
            guard.failed(address, text)
            if not text:
                raise UnauthenticatedError(
                    "this needs an API key", hint="send the header Authorization: Bearer rlk_..."
                ) from error
            raise
        guard.passed(text)
        request.state.key = key  # for the logs (controller.service.edge)
        key.require(self._scope)
        return key


async def read_object(
    request: Request, max_bytes: int, *, optional: bool = False
) -> dict[str, Any]:
    """The body, a JSON object or, by its content type, a YAML mapping of JSON values; ``optional``:
    no body is an empty one. Raises ``TooLargeError`` before it has read more than ``max_bytes``,
    ``UserError`` for what is neither.
    """
    as_yaml = is_yaml(request.headers.get("content-type", ""))
    if as_yaml:
        max_bytes = min(max_bytes, MAX_YAML_BYTES)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLargeError(f"a request body may have {max_bytes} bytes")
    if optional and not body:
        return {}
    if as_yaml:
        given = await asyncio.to_thread(read_yaml, bytes(body))
    else:
        given = _read_json(body)
    if not isinstance(given, dict):
        raise UserError(f"the body must be a {'YAML mapping' if as_yaml else 'JSON object'}")
    try:
        # NaN, dates and halves of surrogate pairs pass the parsers and could not be stored.
        text = json.dumps(given, allow_nan=False, ensure_ascii=False)
        text.encode()
        value: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the body holds a value that JSON has not: {error}") from error
    return value


async def read_model(
    request: Request, max_bytes: int, model: type[M], what: str, *, optional: bool = False
) -> M:
    """The body as a ``model``. ``what`` it is, for people; the rest as ``read_object``, whose
    ``UserError`` names the fields."""
    body = await read_object(request, max_bytes, optional=optional)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise user_error(error, model, what) from error


def _read_json(body: bytes | bytearray) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not JSON: {error}") from error


def problem(error: RlhflessError, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(
        error.to_problem(), error.status, headers, media_type="application/problem+json"
    )


def answer_with_problems(app: FastAPI) -> None:
    """Every refusal is a problem document (RFC 9457); so are defects of ours, told by
    ``controller.service.edge``."""

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, RlhflessError)
        error = as_told(error)
        error.trace = None  # for our own logs, not for whoever asks
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        if isinstance(error, StillWorkingError | TooManyRequestsError):
            headers["Retry-After"] = str(error.retry_after_s)
        return problem(error, headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        return problem(UserError(f"{param}: {first['msg']}", param=param))

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 413:
            return problem(TooLargeError(error.detail))
        asked = f"{request.method} {request.scope['path']}"[:200]
        if error.status_code == 404:
            return problem(NotFoundError(f"there is no {asked}", hint=_SEE_DOCS))
        if error.status_code == 405:
            refused = UserError(f"{asked} cannot be asked for", hint=_SEE_DOCS)
        else:
            refused = UserError(str(error.detail))
        document = refused.to_problem()
        document |= {"title": HTTPStatus(error.status_code).phrase, "status": error.status_code}
        return JSONResponse(
            document, error.status_code, error.headers, media_type="application/problem+json"
        )

    app.add_exception_handler(RlhflessError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, routing)
