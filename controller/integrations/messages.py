"""What a webhook is sent: the message, its signature, and one attempt to deliver it.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com), so that its libraries, and
those of services that use it, verify them: the headers ``webhook-id``, ``webhook-timestamp`` (Unix
seconds) and ``webhook-signature``, which is ``v1,`` and the base64 of HMAC-SHA256 over
``{id}.{timestamp}.{body}``. The key is the secret's text, or what follows ``whsec_`` as base64.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httpcore

from controller.service.fetch import CheckedBackend
from controller.service.urls import host_and_port, is_exempt, parse_url
from rlhfless.errors import TransientError
from rlhfless.spec import WebhookSpec

TIMEOUT_S = 10.0
_PREFIX = "whsec_"


def wants(webhook: WebhookSpec, kind: str, data: Mapping[str, Any]) -> bool:
    """Whether an event of a job (``state`` or ``step``, among others) is for this webhook."""
    asked: Sequence[str] = webhook.events
    return kind == "step" in asked or (kind == "state" and data.get("state") in asked)


def message(
    id_: str, at: float, job: str, name: str, kind: str, data: Mapping[str, Any]
) -> dict[str, Any]:
    """The message's body. ``id_`` is the same in every attempt; ``at``: Unix seconds."""
    head = {"id": id_, "type": f"job.{kind}", "created_at": at, "job": job, "name": name}
    return head | {key: value for key, value in data.items() if key not in head}


def signature(secret: str, id_: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``."""
    signed = f"{id_}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass  # it only looks like one
    return secret.encode()


class Refused(Exception):
    """The receiver answered with a ``status`` that is no success; a redirect is none either."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered with status {status}")
        self.status = status


async def post(
    webhook: WebhookSpec,
    content: Mapping[str, Any],
    now_s: float,
    *,
    trusted: bool,
    allowed_urls: Sequence[str] = (),
) -> None:
    """Deliver a message once, within ``TIMEOUT_S``. ``now_s``: Unix seconds. Unless ``trusted``,
    the receiver must be of the public internet or below ``allowed_urls``.

    Raises ``Refused``, ``TransientError`` if it cannot be reached, ``UserError`` if it must not.
    """
    parts = parse_url(webhook.url, "webhooks", credentials=True)
    body = json.dumps(content, separators=(",", ":")).encode()
    timestamp = int(now_s)
    headers: dict[bytes | str, bytes | str] = {
        "Host": parts.netloc.rpartition("@")[2],
        "User-Agent": "rlhfless",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "webhook-id": str(content["id"]),
        "webhook-timestamp": str(timestamp),
        **_authorization(parts),
    }
    if webhook.secret is not None:
        secret = webhook.secret.get_secret_value()
        headers["webhook-signature"] = signature(secret, str(content["id"]), timestamp, body)
    backend = CheckedBackend("webhooks", trusted or is_exempt(parts, allowed_urls))
    timeout = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
    target = parts._replace(fragment="", path=parts.path or "/", netloc=_netloc(parts)).geturl()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),  # a receiver may send its answer byte by byte
            httpcore.AsyncConnectionPool(
                ssl_context=ssl.create_default_context(),
                network_backend=backend,
                max_connections=1,
            ) as pool,
            pool.stream(
                "POST", target, headers=headers, content=body, extensions={"timeout": timeout}
            ) as got,
        ):
            if not 200 <= got.status < 300:
                raise Refused(got.status)
    except TimeoutError:
        raise TransientError(f"no answer within {TIMEOUT_S:g} s") from None
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise TransientError(str(error) or type(error).__name__) from error


def _authorization(parts: SplitResult) -> dict[bytes | str, bytes | str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _netloc(parts: SplitResult) -> str:
    host, port = host_and_port(parts)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown(webhook: WebhookSpec) -> str:
    """The webhook's host, for messages: its path may be as good as a key."""
    return urlsplit(webhook.url).hostname or "webhook"
