"""``client.jobs``: submit jobs, look at them, steer them, take what they leave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from rlhfless import rest
from rlhfless.client.attach import local_spec, uploaded
from rlhfless.client.download import downloaded
from rlhfless.client.finding import found
from rlhfless.client.flows import Flow, Items, Pause
from rlhfless.client.methods import Driver, Methods, answers, yields
from rlhfless.client.requests import PAGE, delete, get, pages, path, post, stream
from rlhfless.errors import TransientError
from rlhfless.spec import JobSpec

JobOrId: TypeAlias = rest.Job | str
Sort: TypeAlias = Literal["reward", "-reward", "id"]

POLL_S = 1.0
"""Longest between two looks at a job that is waited for."""
STANDING: frozenset[rest.State] = rest.FINAL | {"paused"}
"""States that nothing follows unless somebody does something."""


class Jobs(Methods[Driver]):
    """A job is given as its id or as the document that a method answered. All raise our errors
    (``rlhfless.errors``); ``NotFoundError`` where there is no such job."""

    @answers
    def submit(self, spec: JobSpec | Mapping[str, Any] | str) -> Flow[rest.Job]:
        """Submit a job: a job file's path, or a spec. Files that lie on this machine, models,
        datasets and rewards, are uploaded first; those that the service has are not sent again."""
        body = yield from uploaded(local_spec(spec))
        return (yield from post(rest.Job, path("jobs"), body))

    @yields
    def list(self) -> Items[rest.Job]:
        """All jobs, newest first."""
        return pages(rest.Job, path("jobs"))

    @answers
    def get(self, job: JobOrId) -> Flow[rest.Job]:
        return get(rest.Job, _path(job))

    @answers
    def find(self, name: str) -> Flow[rest.Job]:
        """The job of this id, the newest of this name, or the one whose id begins like this.
        Raises ``UserError`` where that is said of several."""
        return found(name)

    @answers
    def cancel(self, job: JobOrId) -> Flow[rest.Job]:
        """End it at once. What its committed steps have left stays."""
        return post(rest.Job, _path(job, "cancel"))

    @answers
    def pause(self, job: JobOrId) -> Flow[rest.Job]:
        """Let it stop before its next step."""
        return post(rest.Job, _path(job, "pause"))

    @answers
    def resume(self, job: JobOrId, *, budget: Mapping[str, Any] | None = None) -> Flow[rest.Job]:
        """Let a paused job go on; ``budget`` has the fields of that section that are to change."""
        body = None if budget is None else {"budget": dict(budget)}
        return post(rest.Job, _path(job, "resume"), body)

    @answers
    def delete(self, job: JobOrId) -> Flow[None]:
        """Remove a job that has ended, with all it left. Raises ``ConflictError`` if it has not, or
        if one of its checkpoints is the model of a job that has not."""
        return delete(_path(job))

    @answers
    def wait(self, job: JobOrId, timeout_s: float | None = None) -> Flow[rest.Job]:
        """The job when it has ended or is paused. Raises ``TransientError`` if it goes on for
        longer than ``timeout_s``; the job is not touched."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.1
        while True:
            now = yield from get(rest.Job, _path(job))
            if now.state in STANDING:
                return now
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TransientError(
                        f"job {now.id} is still {now.state} after {timeout_s:g} s",
                        hint="it goes on; wait again, or cancel it",
                    )
                pause_s = min(pause_s, left_s)
            yield Pause(pause_s)
            pause_s = min(POLL_S, pause_s * 1.5)

    @yields
    def events(
        self, job: JobOrId, *, after: str | None = None, follow: bool = True
    ) -> Items[rest.Event]:
        """What happened to it, in order, each event once. With ``follow`` every event until the job
        has ended, through cut connections and restarts of the service; else those there are."""
        return _told(rest.Event, job, "events", after, follow)

    @yields
    def logs(
        self, job: JobOrId, *, after: str | None = None, follow: bool = False
    ) -> Items[rest.LogLine]:
        """What the controller and the functions printed, as ``events``."""
        return _told(rest.LogLine, job, "logs", after, follow)

    @yields
    def metrics(self, job: JobOrId, *, after: str | None = None) -> Items[rest.StepMetrics]:
        """Of every committed step."""
        return pages(rest.StepMetrics, _path(job, "metrics"), after=after)

    @yields
    def plans(self, job: JobOrId, *, after: str | None = None) -> Items[rest.StepPlan]:
        """Why each step's rollout ran as it did."""
        return pages(rest.StepPlan, _path(job, "plans"), after=after)

    @yields
    def rollouts(
        self,
        job: JobOrId,
        *,
        step: int | None = None,
        sort: Sort | None = None,
        tokens: bool = False,
    ) -> Items[rest.Rollout]:
        """The samples of a step (None: of the newest). ``sort``: ``-reward`` has the best first.
        ``tokens``: with each token's text and log-prob."""
        params = {"step": step, "sort": sort, "tokens": tokens or None}
        return pages(rest.Rollout, _path(job, "rollouts"), params)

    @answers
    def usage(self, job: JobOrId) -> Flow[rest.Usage]:
        """Its ledger: in all, by function, and by step."""
        after, steps = None, []
        while True:
            params = {"limit": PAGE, "after": after}
            usage: rest.Usage = yield from get(rest.Usage, _path(job, "usage"), params)
            steps += usage.data
            if not usage.has_more or not usage.data:
                return usage.model_copy(update={"data": steps, "has_more": False})
            after = usage.data[-1].id

    @yields
    def timeline(self, job: JobOrId) -> Items[rest.Span]:
        """What its instances did when."""
        return pages(rest.Span, _path(job, "timeline"))

    @yields
    def checkpoints(self, job: JobOrId) -> Items[rest.Checkpoint]:
        return pages(rest.Checkpoint, _path(job, "checkpoints"))

    @answers
    def download(self, job: JobOrId, folder: str, *, step: int | None = None) -> Flow[str]:
        """Write the checkpoint of ``step`` (None: the newest) to ``folder`` and return it; it is
        what ``transformers`` loads with ``from_pretrained``.

        The folder appears when all is there and its checksums are right. What an attempt that broke
        off has left beside it, in ``<folder>.partial``, is used by the next. Raises
        ``ConflictError`` if the folder holds something else already.
        """
        return downloaded(_path(job, "checkpoints"), folder, step)


def _id(job: JobOrId) -> str:
    return job.id if isinstance(job, rest.Job) else job


def _path(job: JobOrId, *more: str) -> str:
    return path("jobs", _id(job), *more)


def _told(model: Any, job: JobOrId, what: str, after: str | None, follow: bool) -> Items[Any]:
    if not follow:
        return pages(model, _path(job, what), after=after)

    def ended() -> Flow[bool]:
        return (yield from get(rest.Job, _path(job))).state in rest.FINAL

    return stream(model, _path(job, what), ended, after)
