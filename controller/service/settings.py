"""What an operator sets about a service; ``rlhfless serve`` fills it from flags and environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from controller.service.queue import PATIENCE_INSTANCE_S
from controller.service.tenants import Limits


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``folder``: what this replica keeps on its own disk; replicas may share it. ``store``: URL of
    the object store, which all replicas share. ``instances``: function instances that all jobs
    together may hold."""

    folder: str
    store: str
    instances: int = 8
    patience_instance_s: float = PATIENCE_INSTANCE_S
    """Instance-seconds that a job runs on though another's turn has come: to change turns costs
    cold starts."""
    max_body_bytes: int = 1 << 20
    """Of a JSON request; a job spec is some kilobytes."""
    max_file_bytes: int = 2 << 30
    """Of an upload, or of a file fetched from a URL."""
    max_tenant_bytes: int = 20 << 30
    """Of all files of a tenant."""
    max_unpacked_bytes: int = 4 << 30
    """Of what comes out of an uploaded tar."""
    max_hub_bytes: int = 64 << 30
    """Of a model or dataset from the Hub."""
    max_input_bytes: int = 128 << 30
    """Of unpacked inputs of jobs kept in the folder; those not used for longest go first."""
    max_running_jobs: int = 32
    """Jobs that this replica drives at once."""
    keep_days: float | None = None
    """Jobs that ended longer ago are removed with all they left; None: kept for ever."""
    default_limits: Limits = field(default_factory=Limits)
    """Of a tenant that has none of its own."""
    library: str | None = None
    """Folder of models, datasets and rewards that every tenant's jobs may name."""
    platform_file: str | None = None
    """Says which cluster runs functions, and how they look there; None: this machine."""
    allowed_urls: tuple[str, ...] = field(default=())
    """Prefixes of URLs that jobs may name though they lead into the operator's own network."""

    def file(self, *names: str) -> str:
        return os.path.join(self.folder, *names)
