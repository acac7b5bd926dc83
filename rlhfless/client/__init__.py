"""The Python clients of the service: ``rlhfless.Client`` and ``rlhfless.AsyncClient``."""

from __future__ import annotations

from rlhfless.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
