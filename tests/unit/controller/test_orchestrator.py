"""The real orchestrator on virtual time, against scripted functions that fail at random.

Whatever is lost on the way - streams, instances, answers, the controller itself - a job must end
with the same samples, one optimizer step a step, and nothing generated that was already finished.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from controller.books import Books
from controller.collector import FinishedSample
from controller.job import Event
from controller.job_store import JobStore
from controller.orchestrator import Orchestrator, Outcome
from rlhfless.batches import Batch
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import GradientsRequest, RolloutRequest, TrainRequest
from simulator.clock import run
from tests.support.world import STEPS, World, make_spec, world


def batches(w: World) -> list[Batch]:
    return [w.platform.batches[call] for call in sorted(w.platform.batches)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    w = world(tmp_path_factory.mktemp("undisturbed"))
    run(w.live())
    return batches(w)


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, array in vars(other).items():
            assert (getattr(one, name) == array).all(), name


def test_a_job_from_start_to_end(tmp_path: Path, undisturbed: list[Batch]) -> None:
    w = world(tmp_path)
    outcome = run(w.live())
    assert outcome is not None
    assert (outcome.status, outcome.steps, outcome.version) == ("succeeded", STEPS, STEPS)
    assert outcome.before is not None
    assert 0 <= outcome.before.accuracy <= 1
    assert sorted(w.platform.trained) == [1, 2, 3]
    assert [b.num_samples for b in undisturbed] == [16] * STEPS
    # Each sample is generated once, each on the version before the step.
    assert all(
        b.response_lengths.sum()
        == sum(w.platform.generated[f"{s}/{g}/{k}"] for g in range(4) for k in range(4))
        for s, b in enumerate(undisturbed)
    )
    train = [r for r in w.platform.requests if isinstance(r, TrainRequest)]
    assert [r.checkpoint for r in train] == [False, True, True]
    kinds = [e.kind for e in w.events]
    assert kinds.count("step") == STEPS
    metrics = next(e for e in w.events if e.kind == "step").data["metrics"]
    for name in (
        "step",
        "reward/mean",
        "response_length/mean",
        "response_length/max",
        "policy/kl",
        "policy/grad_norm",
        "time/step_s",
        "time/rollout_s",
        "time/train_s",
        "functions/held_s",
        "functions/busy_s",
        "functions/idle_fraction",
        "prefill/tokens_computed",
        "prefill/tokens_saved",
        "tokens_per_s",
    ):
        assert name in metrics


def test_scoring_overlaps_the_rollout(tmp_path: Path) -> None:
    w = world(tmp_path)
    run(w.live())
    metrics = [e.data["metrics"] for e in w.events if e.kind == "step"]
    # Two scoring calls of 5 ms (the last batch's reward and reference, side by side) are left.
    assert all(m["time/scoring_tail_s"] < 0.012 for m in metrics)


@pytest.mark.parametrize("seed", range(12))
def test_lost_streams_drains_and_refusals_change_nothing(
    tmp_path: Path, undisturbed: list[Batch], seed: int
) -> None:
    w = world(tmp_path, seed=seed, lost=0.05, drained=0.03, refused=0.05, repeated=0.05)
    outcome = run(w.live())
    assert outcome is not None
    assert outcome.status == "succeeded"
    assert_same(batches(w), undisturbed)
    assert sorted(w.platform.trained) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(12))
def test_a_controller_killed_again_and_again_changes_nothing(
    tmp_path: Path, undisturbed: list[Batch], seed: int
) -> None:
    w = world(tmp_path, seed=seed, lost=0.02)
    rng = random.Random(seed)

    async def lives() -> int:
        count = 1
        while await w.live(for_s=rng.uniform(0.05, 0.9)) is None:
            count += 1
            assert count < 300
        return count

    assert run(lives()) > 1
    assert_same(batches(w), undisturbed)
    assert sorted(w.platform.trained) == [1, 2, 3]


OVERLAP = {"training": {"overlap": True}}


@pytest.mark.parametrize("seed", range(6))
def test_the_update_begins_while_the_rollout_runs(
    tmp_path: Path, undisturbed: list[Batch], seed: int
) -> None:
    """Whatever is lost on the way: the same batches, and what was begun is a part of them."""
    chance = 0.05 if seed else 0.0
    w = world(tmp_path, make_spec(**OVERLAP), seed=seed, lost=chance, refused=chance)
    run(w.live())
    assert_same(batches(w), undisturbed)
    begun = [r for r in w.platform.requests if isinstance(r, GradientsRequest)]
    for version, rewards in w.platform.begun.items():
        expected = undisturbed[version - 1].rewards
        assert rewards == {i: expected[i] for i in rewards}
    if not seed:
        assert {r.model.version for r in begun} == {0, 1, 2}
        trains = [r for r in w.platform.requests if isinstance(r, TrainRequest)]
        for train in trains:
            parts = [r for r in begun if r.model.version == train.model.version]
            assert sum(len(r.samples) for r in parts) >= 8  # of 16; those in the tail are left
            for name in ("algorithm", "optimization", "seed", "temperature", "max_tokens"):
                assert all(getattr(r, name) == getattr(train, name) for r in parts), name


@pytest.mark.parametrize("seed", range(6))
def test_a_controller_killed_while_it_overlaps_changes_nothing(
    tmp_path: Path, undisturbed: list[Batch], seed: int
) -> None:
    w = world(tmp_path, make_spec(**OVERLAP), seed=seed, lost=0.02)
    rng = random.Random(seed)

    async def lives() -> None:
        while await w.live(for_s=rng.uniform(0.05, 0.9)) is None:
            pass

    run(lives())
    assert_same(batches(w), undisturbed)


def test_a_journal_that_fails_to_keep_samples_ends_the_run_and_loses_none(
    tmp_path: Path, undisturbed: list[Batch]
) -> None:
    """It must not be taken for a broken stream: the stream would be repeated without them."""
    w = world(tmp_path)

    class Failing(JobStore):
        calls = 0

        async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None:
            Failing.calls += 1
            if Failing.calls == 2:
                raise TransientError("the job store cannot be reached")
            await super().add_samples(step, samples)

    async def lives() -> None:
        job = w.job()
        journal = Failing(fakeredis.FakeAsyncRedis(server=w.server), "job")
        with pytest.raises(ExceptionGroup) as raised:
            await Orchestrator(replace(job, journal=journal), "weights").run()
        assert raised.group_contains(TransientError, match="job store cannot be reached")
        await w.live()

    run(lives())
    assert_same(batches(w), undisturbed)


def test_a_batch_that_is_deleted_while_it_is_trained_on_gives_a_clear_error(tmp_path: Path) -> None:
    """As another controller does that has overtaken this one."""
    w = world(tmp_path)

    async def overtaken() -> None:
        job = w.job()
        put = job.objects.put

        def put_and_lose(name: str, data: bytes, *, durable: bool = False) -> None:
            put(name, data, durable=durable)
            if name.startswith("batches/"):
                job.objects.delete(name)

        job.objects.put = put_and_lose  # type: ignore[method-assign]
        await Orchestrator(job, "weights").run()

    with pytest.raises(ExceptionGroup) as raised:
        run(overtaken())
    assert raised.group_contains(TransientError, match="was deleted while it was trained on")


def test_finished_samples_are_not_generated_again(tmp_path: Path) -> None:
    w = world(tmp_path)

    async def lives() -> dict[str, int]:
        life = asyncio.create_task(w.live())
        while not any(event.kind == "rollout" for event in w.events):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        life.cancel()
        await asyncio.wait([life])
        journal = await w.job().journal.step_journal(0)
        assert 0 < len(journal.samples) < 16
        before = {i: w.platform.generated[i] for i in journal.samples}
        await w.live()
        return before

    before = run(lives())
    assert {i: w.platform.generated[i] for i in before} == before


def test_a_function_that_never_answers_well_gives_a_clear_error(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.platform.broken = TransientError("rollout-1 died (SIGKILL)")
    with pytest.raises(ExceptionGroup) as raised:
        run(w.live())
    assert raised.group_contains(InternalError, match=r"rollout function failed 8 times.*SIGKILL")


def test_a_users_mistake_is_not_retried(tmp_path: Path) -> None:
    w = world(tmp_path)
    w.platform.broken = UserError("there is no model")
    with pytest.raises(ExceptionGroup) as raised:
        run(w.live())
    assert raised.group_contains(UserError, match="no model")
    assert len(w.platform.requests) == 3  # one an actor


def test_actors_are_chosen_and_the_choice_is_kept(tmp_path: Path) -> None:
    w = world(tmp_path)

    async def plans() -> list[dict[str, Any]]:
        await w.live()
        return [r.plan for r in await w.job().journal.records()]

    found = run(plans())
    assert found[0]["actors"] == 3  # nothing measured yet
    tried = {(each["actors"], each["strategy"]) for each in found[1]["alternatives"]}
    assert len(tried) == 9  # three numbers of actors, three ways to deal out the samples
    assert (found[1]["actors"], found[1]["strategy"]) in tried


@pytest.mark.parametrize("on_exceed", ["pause", "fail"])
def test_a_budget_stops_the_job_between_steps(tmp_path: Path, on_exceed: str) -> None:
    spec = make_spec(budget={"max_function_seconds": 5.0, "on_exceed": on_exceed})
    w = world(tmp_path, spec)

    async def spend() -> Outcome:
        job = w.job()
        earlier = {"usage": {"training": {"cold_s": 1.0, "busy_s": 5.0}}}
        job = replace(job, books=Books(job.ledger, earlier, 0.0))
        return await Orchestrator(job, "weights").run()

    if on_exceed == "fail":
        with pytest.raises(UserError, match="budget is used up after 0 steps"):
            run(spend())
    else:
        outcome = run(spend())
        assert (outcome.status, outcome.steps) == ("paused", 0)
    assert w.platform.trained == {}


def test_a_job_that_is_resumed_without_budget_tells_what_it_had_learned(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(evaluation={"every": 1}))

    async def lives() -> Outcome | None:
        await w.live()
        w.spec = make_spec(budget={"max_function_seconds": 5.0}, training={"steps": STEPS + 1})
        job = w.job()
        spent = {"usage": {"training": {"busy_s": 6.0}}}
        job = replace(job, books=Books(job.ledger, spent, 0.0))
        return await Orchestrator(job, "weights").run()

    outcome = run(lives())
    assert outcome is not None
    assert (outcome.status, outcome.steps) == ("paused", STEPS)
    assert outcome.before is not None
    assert sorted(outcome.accuracy) == [0, 1, 2, 3]


@pytest.mark.parametrize(("spent_by", "evaluations"), [("step", 1), ("evaluated", 2)])
def test_a_budget_stops_the_job_before_and_after_an_evaluation_between_steps(
    tmp_path: Path, spent_by: str, evaluations: int
) -> None:
    spec = make_spec(budget={"max_function_seconds": 5.0}, evaluation={"every": 1})
    w = world(tmp_path, spec)

    async def spend() -> Outcome:
        job = w.job()

        def observe(event: Event) -> None:
            first = event.data.get("step", 1) == 1  # of evaluations, not that before training
            if event.kind == spent_by and first:
                job.ledger.started("x", "rollout", asyncio.get_running_loop().time() - 6.0)

        return await Orchestrator(replace(job, observe=observe), "weights").run()

    outcome = run(spend())
    assert (outcome.status, outcome.steps) == ("paused", 1)
    assert len(w.platform.trained) == 1
    assert len(outcome.accuracy) == evaluations


def test_an_evaluation_uses_the_version_it_is_asked_for(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(evaluation={"every": 1, "temperature": 0.0}))
    run(w.live())
    evaluations = [
        r for r in w.platform.requests if isinstance(r, RolloutRequest) and "/eval" in r.call.id
    ]
    assert sorted({r.model.version for r in evaluations}) == [0, 1, 2, 3]
    assert {r.sampling.temperature for r in evaluations} == {0.0}


def test_an_evaluation_lost_with_its_controller_is_made_up_for(tmp_path: Path) -> None:
    w = world(tmp_path, make_spec(evaluation={"every": 1}))

    async def lives() -> Outcome | None:
        life = asyncio.create_task(w.live())
        while not any(event.kind == "step" for event in w.events):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        life.cancel()  # after the commit, before the evaluation that follows it
        await asyncio.wait([life])
        return await w.live()

    outcome = run(lives())
    assert outcome is not None
    assert sorted(outcome.accuracy) == [0, 1, 2, 3]


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path) -> None:
    w = world(tmp_path)
    run(w.live())
    w.spec = make_spec(training={"steps": STEPS - 1})
    with pytest.raises(UserError, match="3 steps are done already"):
        run(w.live())


def test_a_dataset_that_changed_is_refused(tmp_path: Path) -> None:
    w = world(tmp_path)

    async def lives() -> None:
        await w.live(for_s=0.3)
        job = w.job()
        job.data.prompts[0] = dataclasses.replace(job.data.prompts[0], tokens=(9, 9))
        await Orchestrator(job, "weights").run()

    with pytest.raises(UserError, match="dataset has changed"):
        run(lives())
