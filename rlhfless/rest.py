"""The REST API's documents: what the service answers and its clients read, typed once.

Shapes follow OpenAI's fine-tuning jobs: every document names its kind in ``object``, times are Unix
seconds, pages are ``{data, has_more}`` and go on ``after`` the id of the last entry. Readers ignore
fields they do not know, so that client and service can be of neighbouring releases. The body of
``POST /v1/jobs`` and of ``POST /v1/estimates`` is the job spec itself (``rlhfless.spec``).
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

State = Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]
Phase = Literal["cold", "busy", "idle"]
Level = Literal["info", "warning", "error"]
Scope = Literal["read", "submit", "admin"]
Purpose = Literal["dataset", "reward", "model"]

FINAL: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
"""States that nothing follows."""


class Document(BaseModel):
    model_config = ConfigDict(
        extra="ignore", frozen=True, use_attribute_docstrings=True, protected_namespaces=()
    )


Entry = TypeVar("Entry", bound=Document)


class Page(Document, Generic[Entry]):
    """Part of a list. ``has_more``: ask again ``after`` the last entry's id."""

    object: Literal["list"] = "list"
    data: list[Entry]
    has_more: bool


class Problem(Document):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    category: Literal["user", "capacity", "transient", "internal"]
    param: str | None = None
    hint: str | None = None


# --- jobs -----------------------------------------------------------------------------------------


class StateEntered(Document):
    at: float
    reason: str | None = None


class Spent(Document):
    """Instance-seconds by phase; ``usd`` is null where a price is unknown, which is not 0."""

    held_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    cold_s: float = 0.0
    usd: float | None = None


class Progress(Document):
    """How far a job is. ``phase``: what it does now (``rollout``, ``train``, ``evaluate``, ...),
    null unless it runs."""

    steps_done: int = 0
    total_steps: int | None = None
    phase: str | None = None
    actors: int = 0
    """Rollout instances of the step under way."""
    instances: int = 0
    """Instances the fair queue grants the job now."""
    reward: float | None = None
    """Mean reward of the last committed step."""
    spent: Spent = Spent()
    wall_s: float = 0.0
    """Seconds it ran, waiting and pauses not counted."""


class Forecast(Document):
    """What the whole job will have taken, from the steps it has done."""

    finish_at: float | None = None
    wall_s: float
    held_s: float
    usd: float | None = None


class Job(Document):
    id: str
    object: Literal["rlhf.job"] = "rlhf.job"
    name: str
    created_at: float
    updated_at: float
    finished_at: float | None = None
    state: State
    reason: str | None = None
    """Why it is in that state, in words."""
    states: dict[State, StateEntered]
    """When and why it last entered each state."""
    error: Problem | None = None
    """Of a failed job."""
    progress: Progress = Progress()
    forecast: Forecast | None = None
    metadata: dict[str, str] = {}
    spec: dict[str, Any]
    """The resolved job spec; secrets are masked."""


class JobChange(Document):
    """Body of ``POST /v1/jobs/{id}/resume``, which may be empty: a new ``budget`` section."""

    model_config = ConfigDict(extra="forbid")
    budget: dict[str, Any] | None = None


class Event(Document):
    """``type`` (``state``, ``step``, ``evaluated``, ``checkpoint``, ``notice``, ...) says what
    ``data`` holds."""

    id: str
    object: Literal["rlhf.job.event"] = "rlhf.job.event"
    created_at: float
    type: str
    level: Level
    message: str
    data: dict[str, Any]


class LogLine(Document):
    """``source``: ``controller`` or the function instance that said it."""

    id: str
    object: Literal["rlhf.job.log"] = "rlhf.job.log"
    created_at: float
    source: str
    text: str


# --- what a job leaves ----------------------------------------------------------------------------


class StepMetrics(Document):
    """``id``: the step, counted from 1, as a string. ``metrics``: by public name."""

    id: str
    object: Literal["rlhf.job.metrics"] = "rlhf.job.metrics"
    step: int
    metrics: dict[str, float]


class StepPlan(Document):
    """Why a step's rollout ran as it did (``docs/scheduling.md`` explains the fields)."""

    id: str
    object: Literal["rlhf.job.plan"] = "rlhf.job.plan"
    step: int
    plan: dict[str, Any]


class TokenShown(Document):
    """A response token as text, and its log-prob under the policy that sampled it (null: it was no
    number)."""

    text: str
    logprob: float | None


class Rollout(Document):
    """A sample. ``rewards``: by reward name, null where one does not apply."""

    id: str
    object: Literal["rlhf.job.rollout"] = "rlhf.job.rollout"
    step: int
    prompt: Any
    """A string, or chat messages."""
    completion: str
    reward: float
    rewards: dict[str, float | None]
    num_tokens: int
    finish_reason: str
    version: int
    tokens: list[TokenShown] | None = None
    """With ``?tokens=true``."""


class StepSpent(Document):
    """What a step took, by function."""

    id: str
    object: Literal["rlhf.job.usage"] = "rlhf.job.usage"
    step: int
    functions: dict[str, Spent]


class Usage(Document):
    """The job's ledger: in all, by function, and a page of its steps."""

    object: Literal["rlhf.usage"] = "rlhf.usage"
    total: Spent
    functions: dict[str, Spent]
    wall_s: float
    data: list[StepSpent]
    has_more: bool


class Span(Document):
    """A stretch of an instance's life; ``end_at`` null: it goes on."""

    id: str
    object: Literal["rlhf.job.span"] = "rlhf.job.span"
    instance: str
    function: str
    phase: Phase
    start_at: float
    end_at: float | None = None


class StoredFile(Document):
    name: str
    bytes: int
    sha256: str


class Checkpoint(Document):
    """A model that ``transformers`` loads, as files to download. ``reference`` is what another job
    of the tenant's writes as its ``model.path``."""

    id: str
    object: Literal["rlhf.job.checkpoint"] = "rlhf.job.checkpoint"
    created_at: float
    job: str
    step: int
    version: int
    final: bool
    reference: str
    files: list[StoredFile]
    metrics: dict[str, float] = {}


# --- files, models, estimates, rewards ------------------------------------------------------------


class File(Document):
    """An uploaded file; a job spec names it by its id. ``purpose`` ``model``: a tar of a folder."""

    id: str
    object: Literal["file"] = "file"
    created_at: float
    filename: str
    purpose: Purpose
    bytes: int
    sha256: str


class Model(Document):
    """Something a job can start from: ``path`` is what its ``model.path`` says."""

    id: str
    object: Literal["model"] = "model"
    path: str
    source: Literal["library", "file", "checkpoint"]
    description: str = ""
    created_at: float | None = None


class EstimatePoint(Document):
    """A way to run the job: what to set (dotted fields) and what it would take."""

    settings: dict[str, Any]
    wall_s: float
    held_s: float
    usd: float | None = None


class Estimate(Document):
    """What a job would take on ``cluster``, by simulation. ``frontier``: settings of which none is
    both slower and dearer than another, fastest first."""

    object: Literal["rlhf.estimate"] = "rlhf.estimate"
    cluster: str
    total_steps: int
    step_s: float
    wall_s: float
    held_s: float
    usd: float | None = None
    functions: dict[str, Spent]
    frontier: list[EstimatePoint] = []
    assumptions: list[str] = []


class RewardedRow(Document):
    prompt: Any
    completion: str
    reward: float
    rewards: dict[str, float | None]


class RewardCheck(Document):
    object: Literal["rlhf.reward_check"] = "rlhf.reward_check"
    data: list[RewardedRow]
    seconds: float


# --- keys, tenants --------------------------------------------------------------------------------


class Key(Document):
    """An API key without its secret; ``key``, its text, only in the answer that creates it."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str
    name: str
    scope: Scope
    created_at: float
    revoked_at: float | None = None
    key: str | None = None


class Quota(Document):
    """What a tenant may have; null: no bound but the service's. Function-seconds and dollars are
    of a calendar month (UTC)."""

    weight: float = 1.0
    max_jobs: int | None = None
    max_instances: int | None = None
    max_function_seconds: float | None = None
    max_usd: float | None = None


class Tenant(Document):
    """Whose key this is, what it may have and has used this month."""

    object: Literal["tenant"] = "tenant"
    name: str
    scope: Scope
    quota: Quota
    running_jobs: int
    instances: int
    function_seconds: float
    usd: float
    """Of functions with a known price."""
    unpriced_seconds: float = 0.0
    """Function-seconds of the others."""


class AuditEntry(Document):
    """Who did what: ``action`` is the method and route, ``target`` the path, ``status`` the
    answer's."""

    id: str
    object: Literal["audit.entry"] = "audit.entry"
    created_at: float
    tenant: str
    key: str | None
    action: str
    target: str
    status: int
    request: str
