"""What the controller and its agent in a Ray cluster say to each other: JSON over HTTP, typed once.

The agent (``functions.ray_serve.agent``) makes and removes Serve applications, one a function of a
job, and tells what runs. Structs ignore fields they do not know, so both can be of neighbouring
releases.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

from rlhfless.engines import PLAIN, EngineOptions
from rlhfless.messages import FunctionName

PREFIX = "rlhfless"
"""Of the names of our applications, and of their routes."""
TOKEN_DIGEST_VARIABLE = "RLHFLESS_AGENT_TOKEN_SHA256"  # noqa: S105  (the name of a variable)
RELEASE_VARIABLE = "RLHFLESS_RELEASE"
SERVE_PORT_VARIABLE = "RLHFLESS_SERVE_PORT"
"""Where Serve's proxies listen if it is our agent that starts Serve."""
ReplicaPhase: TypeAlias = Literal["waiting", "cold", "ready", "leaving", "stopping"]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What Ray sets aside for one replica: logical CPUs and GPUs, memory in bytes (0: not
    counted), ``custom`` ones by name, an ``accelerator_type`` such as ``H100`` (empty: any)."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0
    custom: dict[str, float] = {}
    accelerator_type: str = ""


class RayFunction(msgspec.Struct, frozen=True, kw_only=True):
    """How a replica runs its function. A change of any of these makes new replicas.

    ``app``: ``module:create`` (empty: the function's own); ``workers``: of an instance: the replica
    is one, the others are Ray Train's, each with the replica's resources; ``log_folder``: where
    what it writes goes (empty: Ray's own files).
    """

    function: FunctionName
    token: str
    app: str = ""
    threads: int = 1
    accelerator: str = "cpu"
    concurrency: int = 1
    workers: int = 1
    engine: EngineOptions = PLAIN
    log_folder: str = ""


class RayApp(msgspec.Struct, frozen=True, kw_only=True):
    """A Serve application as it shall be. ``warm``: replicas that stay even without work;
    ``idle_s``: how long others do; ``grace_s``: what those have to end their calls that Ray no
    longer wants; ``holder``: who may change or delete it in order; another ``attempt`` makes new
    replicas."""

    name: str
    route: str
    job: str
    holder: str
    function: RayFunction
    resources: Resources = Resources()
    max_replicas: int = 1
    warm: int = 0
    idle_s: float = 60.0
    grace_s: float = 25.0
    attempt: int = 0


class RayReplica(msgspec.Struct, frozen=True, kw_only=True):
    """``phase``: ``waiting`` has no node yet and costs nothing; ``leaving`` still serves, on a node
    that goes; ``stopping`` takes no more calls."""

    id: str
    phase: ReplicaPhase
    pid: int = 0


class RayAppState(msgspec.Struct, frozen=True, kw_only=True):
    """``trouble``: what Ray says is wrong; ``failing``: its replicas end as soon as they start."""

    name: str
    job: str = ""
    holder: str = ""
    trouble: str = ""
    failing: bool = False
    replicas: list[RayReplica] = []


class RayState(msgspec.Struct, frozen=True, kw_only=True):
    """All applications of one release. ``largest``: what the best nodes have in all of each
    resource, in use or not."""

    version: str
    ray_version: str
    apps: list[RayAppState] = []
    largest: dict[str, float] = {}


def agent_name(release: str) -> str:
    return f"{PREFIX}-{release}"


def agent_route(release: str) -> str:
    return f"/{PREFIX}/{release}"


def token_digest(token: str) -> str:
    """By which the agent knows its callers: Ray shows the environment of its processes around."""
    return hashlib.sha256(token.encode()).hexdigest()
