"""How an attempt that stops is put on record, whatever its owner or the queue ask meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.orchestrator import Outcome
from controller.platforms.local_host import LocalHost
from controller.service.attempt import Attempt
from controller.service.hosts import HereHost
from controller.service.job_control import JobControl
from controller.service.lease import Leases
from controller.service.states import State
from rlhfless.errors import NotFoundError, UserError, from_problem
from rlhfless.spec import JobSpec
from tests.support.service_api import SPEC, Api, with_api

OWNER, OTHERS = "by its owner", "others' turn"


async def attempt_at(api: Api, folder: Path) -> Attempt:
    """One at a job that runs."""
    record = await api.service.registry.create("acme", SPEC)
    record = await api.service.registry.move("acme", record.id, "running")
    leases = Leases(api.redis, "replica")
    lease = await leases.acquire(record.id)
    assert lease is not None
    control = JobControl(JobSpec.model_validate(SPEC), 3)
    host = HereHost(LocalHost(str(folder)))
    return Attempt(api.service, host, leases, lease, record, control)


def stopped(reason: str) -> Outcome:
    return Outcome(
        status="paused",
        reason=reason,
        steps=1,
        version=1,
        before=None,
        after=None,
        accuracy={},
        usage={},
        wall_s=1.0,
    )


@pytest.mark.parametrize(
    ("asked", "then", "ends"),
    [
        ("pause", "nothing", "paused"),
        ("pause", "resumed", "running"),  # it is taken up again
        ("yield", "nothing", "queued"),
        ("yield", "turn back", "queued"),
        ("yield", "paused", "paused"),
        ("budget", "nothing", "paused"),
    ],
)
def test_a_job_that_stops_ends_as_it_is_wanted_now(
    asked: str, then: str, ends: State, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        attempt = await attempt_at(api, tmp_path)
        registry, control, job = api.service.registry, attempt.control, attempt.job
        reason = "it has spent its budget"
        if asked == "pause":
            await registry.pause("acme", job, OWNER)
            control.ask("pause", OWNER)
            reason = OWNER
        elif asked == "yield":
            control.ask("yield", OTHERS)
            reason = OTHERS
        if asked != "budget":
            assert control.stopping() == reason
        if then == "resumed":
            await registry.resume("acme", job, lambda spec: spec)
            control.ask(None)
        elif then == "paused":
            await registry.pause("acme", job, OWNER)
            control.ask("pause", OWNER)
        elif then == "turn back":
            control.ask(None)
        await attempt._ended(stopped(reason))
        assert (await registry.get("acme", job)).state == ends

    with_api(test)


@pytest.mark.parametrize(
    ("error", "title"),
    [
        (UserError("reward 'f' raised ValueError"), "Error in the job"),
        (NotFoundError("there is no file"), "Not found"),
    ],
)
def test_a_job_that_failed_is_no_invalid_request(
    error: UserError, title: str, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        attempt = await attempt_at(api, tmp_path)
        await attempt._failed(error)
        record = await api.service.registry.get("acme", attempt.job)
        assert record.error is not None
        assert (record.state, record.error["title"]) == ("failed", title)
        assert type(from_problem(record.error)) is type(error)  # the command line exits by it

    with_api(test)
