"""What a service asks of the trackers of its users, who are strangers to its machine: their own
keys, and an address outside of its network.

The addresses themselves are checked where a job's references are
(``controller.service.reference_check``) and again by the tracker's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from controller.integrations.kinds import require_installed
from controller.service.urls import is_exempt
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec

NEED_URL = ("mlflow", "trackio")
"""Else they would write to the service's own disk."""


def check_strangers(spec: JobSpec, allowed_urls: Sequence[str] = ()) -> None:
    """Raises ``UserError`` naming the field of a tracker that the service cannot run."""
    require_installed(spec)
    for index, integration in enumerate(spec.integrations):
        kind = integration.type
        if kind in NEED_URL and integration.url is None:
            raise UserError(
                f"the service needs the URL of your {kind} server",
                param=f"integrations.{index}.url",
            )
        if kind != "wandb":
            continue
        if integration.api_key is None:
            raise UserError(
                "the service needs your own W&B API key", param=f"integrations.{index}.api_key"
            )
        # Its library connects by a program of its own, whose addresses we cannot check.
        if integration.url is not None and not is_exempt(urlsplit(integration.url), allowed_urls):
            raise UserError(
                "the service sends to W&B's own server only",
                param=f"integrations.{index}.url",
                hint="have the operator allow the URL of yours",
            )
