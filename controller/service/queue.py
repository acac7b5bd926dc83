"""The fair queue: which jobs run now, and with how many instances. A pure policy.

Called when a job comes, ends, pauses or finishes a step; between two steps a job's instances can be
changed, or taken. Instances are dealt out one claim after another:

1. The *first claim* goes to the job that was served least, whoever owns it. Service is counted in
   instance-seconds over the job's share, its tenant's weight divided among the tenant's jobs
   (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). A job that waits falls behind all
   that run, so its turn comes, however large it is and however long or many the others are; and a
   newcomer begins level with the job served least, so it waits for no long job to end.
2. Then the tenant with the fewest instances by its weight is next, again and again (weighted
   max-min): it starts its job served least that fits, or if none does, gives one instance more to
   its smallest.

A running job counts as served ``patience`` less than it was: to stop it and start it again costs
cold starts, so turns change after a while and not at every step. How much a job can owe the others
is bounded, so that what it takes while nobody else can use it is not held against it for ever.

A tenant may be above its share by as much as its jobs are indivisible (``least``), no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PATIENCE_INSTANCE_S = 600.0
"""Five instances for two minutes: some steps of a small job, several cold starts of a large one."""
DEBT_INSTANCE_S = 3 * PATIENCE_INSTANCE_S
"""How far one job may get ahead of another. More than a turn amounts to, or weights would not be
kept."""


@dataclass(frozen=True)
class Quota:
    """What a tenant may have. None: no bound but that of the service."""

    weight: float = 1.0
    max_instances: int | None = None
    max_jobs: int | None = None
    """Jobs that run at once."""


@dataclass(frozen=True)
class Candidate:
    """A job that runs or would like to. ``least``: instances without which it makes no progress;
    ``most``: more are of no use to it."""

    job: str
    tenant: str
    least: int
    most: int
    submitted_s: float
    running: bool = False

    def __post_init__(self) -> None:
        assert 1 <= self.least <= self.most


@dataclass(frozen=True)
class Served:
    """Instance-seconds each job was given, over its share; no job present is below ``floor``."""

    by_job: Mapping[str, float] = field(default_factory=dict)
    floor: float = 0.0


@dataclass(frozen=True)
class Decision:
    """``grants``: instances by job, for those that run; ``waiting``: why each other does not;
    ``shares``: weights of all that could ever run."""

    grants: Mapping[str, int]
    waiting: Mapping[str, str]
    shares: Mapping[str, float]
    served: Served


def decide(
    candidates: Sequence[Candidate],
    quotas: Mapping[str, Quota],
    instances: int,
    served: Served,
    patience_instance_s: float = PATIENCE_INSTANCE_S,
) -> Decision:
    """Deal out ``instances``. A tenant without a quota has the default one."""
    too_large = {job.job: why for job in candidates if (why := _never(job, quotas, instances))}
    able = [job for job in candidates if job.job not in too_large]
    served = _joined(served, able)
    shares = _shares(able, quotas)

    def turn(job: Candidate) -> tuple[float, float, str]:
        patience = patience_instance_s / shares[job.job] if job.running else 0.0
        return served.by_job[job.job] - patience, job.submitted_s, job.job

    table = _Table(sorted(able, key=turn), quotas, instances)
    if table.order:
        table.start(table.order[0])
    while table.deal():
        pass
    waiting = {job.job: table.why_waiting(job) for job in able if job.job not in table.grants}
    return Decision(table.grants, too_large | waiting, shares, served)


def charge(decision: Decision, seconds: float) -> Served:
    """What was served once a decision's grants have been held for ``seconds``."""
    by_job = dict(decision.served.by_job)
    for job, instances in decision.grants.items():
        by_job[job] += instances * seconds / decision.shares[job]
    # What a job took because nobody else could use it is no debt that it pays off for ever.
    debt = DEBT_INSTANCE_S / min(decision.shares.values(), default=1.0)
    level = min((by_job[job] for job in decision.shares), default=0.0) + debt
    for job in decision.shares:
        by_job[job] = min(by_job[job], level)
    return Served(by_job, decision.served.floor)


def _never(job: Candidate, quotas: Mapping[str, Quota], instances: int) -> str | None:
    """Why a job could not run even if it were alone."""
    quota = quotas.get(job.tenant, Quota())
    if job.least > instances:
        return f"needs {job.least} instances, and there are {instances}"
    if quota.max_instances is not None and job.least > quota.max_instances:
        return f"needs {job.least} instances, and its tenant may have {quota.max_instances}"
    if quota.max_jobs == 0:
        return "its tenant may run no jobs"
    return None


class _Table:
    """Instances being dealt out."""

    def __init__(
        self, order: Sequence[Candidate], quotas: Mapping[str, Quota], instances: int
    ) -> None:
        self.order = order
        self.grants: dict[str, int] = {}
        self._quotas = {job.tenant: quotas.get(job.tenant, Quota()) for job in order}
        self._instances = instances
        self._held: Counter[str] = Counter()
        self._jobs: Counter[str] = Counter()

    def start(self, job: Candidate) -> bool:
        """Start a job if there is room for it."""
        quota = self._quotas[job.tenant]
        if quota.max_jobs is not None and self._jobs[job.tenant] >= quota.max_jobs:
            return False
        if self._room(job.tenant) < job.least:
            return False
        self._jobs[job.tenant] += 1
        self._give(job, job.least)
        return True

    def deal(self) -> bool:
        """One claim of the tenant furthest below its share that can use anything."""
        tenants = sorted(
            self._quotas, key=lambda tenant: self._held[tenant] / self._quotas[tenant].weight
        )
        return any(self._start_one(tenant) or self._grow_one(tenant) for tenant in tenants)

    def why_waiting(self, job: Candidate) -> str:
        quota = self._quotas[job.tenant]
        most = quota.max_instances
        if quota.max_jobs is not None and self._jobs[job.tenant] >= quota.max_jobs:
            return f"its tenant runs as many jobs as it may, {quota.max_jobs}"
        if most is not None and self._held[job.tenant] + job.least > most:
            return f"its tenant holds {self._held[job.tenant]} of the {most} instances it may have"
        return f"needs {job.least} instances, and {self._free()} are free"

    def _start_one(self, tenant: str) -> bool:
        jobs = [job for job in self.order if job.tenant == tenant and job.job not in self.grants]
        return any(self.start(job) for job in jobs)

    def _grow_one(self, tenant: str) -> bool:
        growing = [
            job
            for job in self.order
            if job.tenant == tenant and 0 < self.grants.get(job.job, 0) < job.most
        ]
        if not growing or self._room(tenant) < 1:
            return False
        self._give(min(growing, key=lambda job: self.grants[job.job]), 1)
        return True

    def _give(self, job: Candidate, instances: int) -> None:
        self.grants[job.job] = self.grants.get(job.job, 0) + instances
        self._held[job.tenant] += instances

    def _free(self) -> int:
        return self._instances - self._held.total()

    def _room(self, tenant: str) -> int:
        most = self._quotas[tenant].max_instances
        free = self._free()
        return free if most is None else min(free, most - self._held[tenant])


def _joined(served: Served, candidates: Sequence[Candidate]) -> Served:
    """With newcomers at the level of the job served least. Who was served more and left (it is
    paused, say) is remembered until all others have caught up."""
    known = [served.by_job[job.job] for job in candidates if job.job in served.by_job]
    floor = max(served.floor, min(known, default=0.0))
    by_job = {job: level for job, level in served.by_job.items() if level > floor}
    for candidate in candidates:
        by_job.setdefault(candidate.job, floor)
    return Served(by_job, floor)


def _shares(candidates: Sequence[Candidate], quotas: Mapping[str, Quota]) -> dict[str, float]:
    """Each job's weight: its tenant's, divided among the tenant's jobs."""
    jobs = Counter(job.tenant for job in candidates)
    return {
        job.job: quotas.get(job.tenant, Quota()).weight / jobs[job.tenant] for job in candidates
    }
