"""rlhfless: RLHF as stateless functions.

What a user imports. Submodules load on first use, so ``import rlhfless`` stays cheap and never
pulls in torch or fastapi.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhfless.client import AsyncClient, Client
    from rlhfless.errors import RlhflessError, UserError
    from rlhfless.spec import JobSpec
    from rlhfless.spec_file import load_spec

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "JobSpec",
    "RlhflessError",
    "UserError",
    "__version__",
    "load_spec",
]

_HOMES = {
    "AsyncClient": "rlhfless.client",
    "Client": "rlhfless.client",
    "JobSpec": "rlhfless.spec",
    "load_spec": "rlhfless.spec_file",
    "RlhflessError": "rlhfless.errors",
    "UserError": "rlhfless.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rlhfless' has no attribute {name!r}")
