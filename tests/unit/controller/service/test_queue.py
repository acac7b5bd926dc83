import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.service.queue import Candidate, Decision, Quota, Served, charge, decide

TENANTS = ("a", "b", "c")
WINDOW = 100
"""Rounds within which everybody has a turn."""


def job(name: str, tenant: str = "a", least: int = 1, most: int = 8, at: float = 0.0) -> Candidate:
    return Candidate(name, tenant, least, most, at)


def dealt(
    jobs: Sequence[Candidate],
    instances: int,
    quotas: dict[str, Quota] | None = None,
    served: Served | None = None,
) -> Decision:
    return decide(jobs, quotas or {}, instances, served or Served())


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, Quota], int, Served]:
    instances = draw(st.integers(0, 20))
    bound = st.none() | st.integers(0, 12)
    quotas = {
        tenant: Quota(draw(st.sampled_from([0.5, 1.0, 2.0])), draw(bound), draw(bound))
        for tenant in draw(st.sets(st.sampled_from(TENANTS)))
    }
    jobs = []
    for number in range(draw(st.integers(0, 8))):
        least = draw(st.integers(1, 8))
        most = least + draw(st.integers(0, 8))
        tenant, running = draw(st.sampled_from(TENANTS)), draw(st.booleans())
        at = float(draw(st.integers(0, 3)))
        jobs.append(Candidate(f"j{number}", tenant, least, most, at, running))
    by_job = draw(
        st.dictionaries(
            st.sampled_from([f"j{number}" for number in range(10)]),
            st.floats(0, 1e5, allow_nan=False),
        )
    )
    return jobs, quotas, instances, Served(by_job)


def held_by_tenant(jobs: Sequence[Candidate], found: Decision) -> Counter[str]:
    held: Counter[str] = Counter()
    for each in jobs:
        held[each.tenant] += found.grants.get(each.job, 0)
    return held


def instances_of(quota: Quota, otherwise: int) -> int:
    return otherwise if quota.max_instances is None else min(quota.max_instances, otherwise)


@given(situations())
def test_no_bound_is_exceeded(
    situation: tuple[list[Candidate], dict[str, Quota], int, Served],
) -> None:
    jobs, quotas, instances, served = situation
    found = decide(jobs, quotas, instances, served)
    assert sum(found.grants.values()) <= instances
    assert set(found.grants) | set(found.waiting) == {each.job for each in jobs}
    assert not set(found.grants) & set(found.waiting)
    for each in jobs:
        assert each.job in found.waiting or each.least <= found.grants[each.job] <= each.most
    running = Counter(each.tenant for each in jobs if each.job in found.grants)
    for tenant, held in held_by_tenant(jobs, found).items():
        quota = quotas.get(tenant, Quota())
        assert quota.max_instances is None or held <= quota.max_instances
        assert quota.max_jobs is None or running[tenant] <= quota.max_jobs


@given(situations())
def test_nothing_lies_idle_that_anybody_may_use(
    situation: tuple[list[Candidate], dict[str, Quota], int, Served],
) -> None:
    jobs, quotas, instances, served = situation
    found = decide(jobs, quotas, instances, served)
    held = held_by_tenant(jobs, found)
    running = Counter(each.tenant for each in jobs if each.job in found.grants)
    free = instances - held.total()
    for each in jobs:
        quota = quotas.get(each.tenant, Quota())
        most = instances if quota.max_instances is None else quota.max_instances
        room = min(free, most - held[each.tenant])
        if each.job in found.grants:
            assert found.grants[each.job] == each.most or room < 1
        else:
            slots = quota.max_jobs is None or running[each.tenant] < quota.max_jobs
            assert room < each.least or not slots


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_the_question_does_not_matter(
    situation: tuple[list[Candidate], dict[str, Quota], int, Served], shuffle: object
) -> None:
    jobs, quotas, instances, served = situation
    other = list(jobs)
    shuffle.shuffle(other)  # type: ignore[attr-defined]
    found = decide(jobs, quotas, instances, served)
    assert decide(other, quotas, instances, served) == found


@given(situations())
def test_jobs_that_can_be_divided_share_by_weight(
    situation: tuple[list[Candidate], dict[str, Quota], int, Served],
) -> None:
    """Whoever could use more is less than one instance below anybody, by weight."""
    jobs, quotas, instances, served = situation
    jobs = [replace(each, least=1) for each in jobs]
    quotas = {tenant: replace(quota, max_jobs=None) for tenant, quota in quotas.items()}
    found = decide(jobs, quotas, instances, served)
    held = held_by_tenant(jobs, found)
    for poor in held:
        quota = quotas.get(poor, Quota())
        most = sum(each.most for each in jobs if each.tenant == poor)
        if held[poor] >= min(most, instances_of(quota, most)):
            continue
        for rich in held:
            above = (held[rich] - 1) / quotas.get(rich, Quota()).weight
            assert above <= held[poor] / quota.weight


def simulate(
    jobs: list[Candidate],
    quotas: dict[str, Quota],
    instances: int,
    rounds: int,
    seconds: float = 60.0,
    each_round: Callable[[int, list[Candidate]], None] = lambda _, __: None,
) -> list[Decision]:
    served, decisions = Served(), []
    for number in range(rounds):
        each_round(number, jobs)
        found = decide(jobs, quotas, instances, served)
        served = charge(found, seconds)
        jobs[:] = [replace(each, running=each.job in found.grants) for each in jobs]
        decisions.append(found)
    return decisions


@given(situations())
@settings(max_examples=25, deadline=None)
def test_everybody_who_fits_gets_turns_for_ever(
    situation: tuple[list[Candidate], dict[str, Quota], int, Served],
) -> None:
    jobs, quotas, instances, _ = situation
    decisions = simulate(jobs[:5], quotas, instances, 2 * WINDOW, seconds=300.0)
    for each in jobs[:5]:
        quota = quotas.get(each.tenant, Quota())
        if each.least > instances_of(quota, instances) or quota.max_jobs == 0:
            assert all(each.job in found.waiting for found in decisions)
        else:
            assert any(each.job in found.grants for found in decisions[:WINDOW])
            assert any(each.job in found.grants for found in decisions[WINDOW:])


def test_a_short_job_does_not_wait_for_a_long_one_to_end() -> None:
    """Neither of another tenant nor of one's own, even if the long one needs everything."""
    for owner in ("a", "b"):
        jobs = [job("long", "a", least=8, most=8)]

        def add(number: int, jobs: list[Candidate], owner: str = owner) -> None:
            if number == 1000:
                jobs.append(job("short", owner, at=1.0))

        decisions = simulate(jobs, {}, 8, 1020, each_round=add)
        assert all(found.grants == {"long": 8} for found in decisions[:1000])
        assert any("short" in found.grants for found in decisions[1000:])


def test_a_long_job_goes_on_while_short_ones_keep_coming() -> None:
    jobs = [job("long", "a", least=8, most=8)]

    def replace_the_short(number: int, jobs: list[Candidate]) -> None:
        jobs[1:] = [job(f"short-{number}-{k}", "a", at=float(number)) for k in range(4)]

    decisions = simulate(jobs, {}, 8, 200, each_round=replace_the_short)
    assert sum("long" in found.grants for found in decisions) >= 20


@pytest.mark.parametrize("many", [1, 5])
def test_jobs_that_need_everything_take_turns_by_their_tenants_weights(many: int) -> None:
    """However many jobs a tenant has."""
    jobs = [job(f"a{k}", "a", 8, 8) for k in range(many)] + [job("b", "b", 8, 8)]
    decisions = simulate(jobs, {"a": Quota(3.0)}, 8, 4000)
    turns = Counter(next(iter(found.grants))[0] for found in decisions)
    assert turns["a"] / turns["b"] == pytest.approx(3.0, rel=0.1)
    one = [next(iter(found.grants)) for found in decisions]
    by_job = Counter(name for name in one if name.startswith("a"))
    assert max(by_job.values()) <= 1.2 * min(by_job.values())


def test_turns_do_not_change_at_every_step() -> None:
    decisions = simulate([job("x", "a", 8, 8), job("y", "b", 8, 8)], {}, 8, 400, seconds=10.0)
    holders = [next(iter(found.grants)) for found in decisions]
    changes = sum(x != y for x, y in itertools.pairwise(holders))
    assert 10 <= changes <= 400 / 5


def test_who_was_away_saved_up_nothing() -> None:
    jobs = [job("x", "a", 8, 8)]

    def come(number: int, jobs: list[Candidate]) -> None:
        if number == 1000:
            jobs.append(job("y", "b", 8, 8, at=1.0))

    decisions = simulate(jobs, {}, 8, 1200, each_round=come)
    turns = Counter(next(iter(found.grants)) for found in decisions[1000:])
    assert turns["y"] == pytest.approx(100, abs=5)


def test_a_small_job_that_had_all_it_wanted_does_not_lock_the_large_one_out() -> None:
    """For as long as both ran, the large one had seven times as much; it owes nothing for that."""
    jobs = [job("small", "a", 1, 1), job("large", "b", 7, 7)]

    def come(number: int, jobs: list[Candidate]) -> None:
        if number == 5000:
            jobs.append(job("new", "a", 1, 8, at=1.0))

    decisions = simulate(jobs, {}, 8, 5200, each_round=come)
    assert all(found.grants == {"small": 1, "large": 7} for found in decisions[:5000])
    later = [set(found.grants) for found in decisions[5000:]]
    assert any("large" in names for names in later)
    assert any("new" in names for names in later)


def test_what_is_left_over_goes_to_who_can_use_it() -> None:
    found = dealt([job("x", "a", most=2), job("y", "b", most=20)], 10)
    assert found.grants == {"x": 2, "y": 8}


def test_reasons_say_what_is_in_the_way() -> None:
    quotas = {"a": Quota(max_instances=4), "b": Quota(max_jobs=1)}
    jobs = [
        job("huge", "c", least=20, most=20),
        job("above-quota", "a", least=5, most=5),
        job("a1", "a", least=3, most=3),
        job("a2", "a", least=2, most=2),
        job("b1", "b", most=1),
        job("b2", "b", most=1, at=1.0),
        job("c1", "c", least=9, most=9),
    ]
    found = dealt(jobs, 10, quotas)
    assert found.grants == {"a1": 3, "b1": 1}
    assert found.waiting == {
        "huge": "needs 20 instances, and there are 10",
        "above-quota": "needs 5 instances, and its tenant may have 4",
        "a2": "its tenant holds 3 of the 4 instances it may have",
        "b2": "its tenant runs as many jobs as it may, 1",
        "c1": "needs 9 instances, and 6 are free",
    }


def test_what_was_served_is_forgotten_when_all_have_caught_up() -> None:
    jobs = [job("x"), job("y")]
    gone = Served({"x": 5.0, "y": 7.0, "level": 5.0, "paused": 6.0})
    found = dealt(jobs, 1, served=gone)
    assert found.served == Served({"x": 5.0, "y": 7.0, "paused": 6.0}, 5.0)
