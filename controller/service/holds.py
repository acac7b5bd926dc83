"""Who holds how many instances: what the fair queue grants, made true one release at a time.

A grant is what a job ought to have; a hold is what it may have now. The holds together never exceed
the instances there are: a job that is granted more gets it as others let go, and one that is
granted less lets go of what it does not use at once and of the rest when its calls have ended. No
I/O: ``controller.service.shares`` keeps the holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

FORGET_S = 15.0
"""A driven job is reported every second. One that was not for so long has lost its replica, and the
instances went with it."""


class Hold(msgspec.Struct, frozen=True):
    """``reported_s`` (Redis's clock): when its driver last told of it; None: nobody drives it yet,
    the instances are kept for whoever will."""

    instances: int
    reported_s: float | None = None


def settle(
    holds: Mapping[str, Hold],
    grants: Mapping[str, int],
    least: Mapping[str, int],
    used: Mapping[str, int],
    instances: int,
    now_s: float,
) -> dict[str, Hold]:
    """The holds after a turn of the queue.

    ``used``: instances of the jobs that whoever asks drives; the others' holds are their drivers'
    to change. ``least``: what a job cannot do without, by job that is open.
    """
    kept = {
        job: hold
        for job, hold in holds.items()
        if job not in used and hold.reported_s is not None and now_s - hold.reported_s < FORGET_S
    }

    def held(job: str) -> int:
        return holds[job].instances if job in holds else 0

    # Nobody lets go of what nobody else wants.
    wanted = any(granted > held(job) for job, granted in grants.items())
    target = {job: max(grants.get(job, 0), least.get(job, 0)) for job in used}
    for job, there in used.items():
        keep = min(held(job), target[job]) if wanted else held(job)
        kept[job] = Hold(max(there, keep), now_s)
    free = instances - sum(hold.instances for hold in kept.values())
    for job in used:
        more = min(target[job] - kept[job].instances, free)
        if more > 0:
            kept[job] = Hold(kept[job].instances + more, now_s)
            free -= more
    for job, granted in grants.items():
        if job in kept:
            continue
        given = min(granted, free)
        if given >= least.get(job, 1):
            kept[job] = Hold(given)
            free -= given
    return kept
