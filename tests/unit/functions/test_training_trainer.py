"""Train calls: once each, whatever repeats, dies or comes late; the same weights from anywhere."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load

from functions.context import CallContext
from functions.training.trainer import Trainer
from functions.weights.tensors import pull, read_attachment
from rlhfless.errors import ConflictError, InternalError, TransientError, UserError
from rlhfless.messages import Algorithm, Optimization, TrainDone
from rlhfless.versions import collect, manifest_name, read_manifest, versions
from tests.support.training import GRPO, LORA, PPO, SETTINGS, Job, make_batch, new_trainer

TOP = msgspec.structs.replace(SETTINGS, trainable="top_layers", top_layers=1)
WARMING_PPO = msgspec.structs.replace(PPO, value_warmup_steps=1)


@pytest.fixture
def job(tmp_path: Path, tiny_model_dir: Path) -> Job:
    return Job(tmp_path / "store", tiny_model_dir)


def weights(job: Job, version: int) -> dict[str, torch.Tensor]:
    return pull(job.store, job.name, version)[1]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_a_call_makes_the_next_version(job: Job) -> None:
    done = job.train(new_trainer(), job.request(0))
    assert done.version == 1 and not done.repeated
    assert done.metrics["policy/grad_norm"] > 0
    manifest = read_manifest(job.store, job.name, 1)
    assert manifest is not None
    assert manifest.data_position == {"epoch": 0, "index": 0}
    assert manifest.metrics == done.metrics
    assert manifest.attachments == {}


def test_a_repeat_returns_the_first_result(job: Job) -> None:
    trainer, request = new_trainer(), job.request(0)
    first = job.train(trainer, request)
    for again in (trainer, new_trainer()):
        repeat = job.train(again, request)
        assert repeat.repeated and repeat.version == 1 and repeat.metrics == first.metrics
    assert versions(job.store, job.name) == [1]


def test_a_delayed_duplicate_is_harmless_after_later_versions(job: Job) -> None:
    trainer = new_trainer()
    requests = [job.request(parent) for parent in range(3)]
    for request in requests:
        job.train(trainer, request)
    newest = weights(job, 3)
    assert job.train(trainer, requests[0]).version == 1
    assert versions(job.store, job.name) == [1, 2, 3]
    # and the instance goes on as if nothing had been
    job.train(trainer, job.request(3))
    assert_equal(newest, weights(job, 3))


def test_a_duplicate_delayed_until_its_version_was_collected_conflicts(job: Job) -> None:
    trainer = new_trainer()
    for parent in range(3):
        job.train(trainer, job.request(parent, checkpoint=parent == 1))
    collect(job.store, job.name, keep_last=1)
    assert versions(job.store, job.name) == [2, 3]
    with pytest.raises(ConflictError, match="too late"):
        job.train(trainer, job.request(0))


def test_a_stale_parent_conflicts(job: Job) -> None:
    trainer = new_trainer()
    job.train(trainer, job.request(0))
    job.train(trainer, job.request(1))
    with pytest.raises(ConflictError):
        job.train(trainer, job.request(0, call="another"))
    assert versions(job.store, job.name) == [1, 2]


def test_a_parent_that_does_not_exist_is_refused(job: Job) -> None:
    with pytest.raises(UserError, match="version 3"):
        job.train(new_trainer(), job.request(3))


@pytest.mark.parametrize("same_call", [True, False])
def test_two_instances_at_once_make_one_version(job: Job, same_call: bool) -> None:
    trainers = [new_trainer(), new_trainer()]
    calls = [None, None] if same_call else ["one", "two"]
    requests = [job.request(0, call=call) for call in calls]
    results: list[TrainDone | ConflictError] = []
    gate = threading.Barrier(2)

    def attempt(trainer: Trainer, number: int) -> None:
        gate.wait()
        try:
            results.append(job.train(trainer, requests[number]))
        except ConflictError as error:
            results.append(error)

    threads = [threading.Thread(target=attempt, args=(t, n)) for n, t in enumerate(trainers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions(job.store, job.name) == [1]
    made = [r for r in results if isinstance(r, TrainDone) and not r.repeated]
    assert len(made) == 1
    losers = [r for r in results if r is not made[0]]
    if same_call:
        assert all(isinstance(r, TrainDone) and r.metrics == made[0].metrics for r in losers)
    else:
        assert all(isinstance(r, ConflictError) for r in losers)
    # both can go on from it
    for trainer in trainers:
        assert job.train(trainer, job.request(1)).version == 2


SETUPS = {
    "grpo": (GRPO, SETTINGS),
    "ppo": (WARMING_PPO, SETTINGS),
    "lora": (GRPO, LORA),
    "lora_dropout": (GRPO, msgspec.structs.replace(LORA, lora_dropout=0.2, passes=2)),
    "ppo_lora": (PPO, LORA),
    "top_layers": (GRPO, TOP),
}


@pytest.mark.parametrize("checkpoint_at", [None, 0, 1, 2])
@pytest.mark.parametrize("setup", SETUPS)
def test_a_new_instance_goes_on_as_the_dead_one_would_have(
    setup: str, checkpoint_at: int | None, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Three calls, then the fourth on the same instance and, in a copy of the run, on a new one."""
    algorithm, settings = SETUPS[setup]
    runs = [
        Job(tmp_path / name, tiny_model_dir, algorithm=algorithm, settings=settings)
        for name in ("steady", "killed")
    ]
    for run in runs:
        trainer = new_trainer()
        for parent in range(3):
            job_request = run.request(parent, checkpoint=parent == checkpoint_at)
            run.train(trainer, job_request)
        if run is runs[1]:
            trainer = new_trainer()
        done = run.train(trainer, run.request(3))
        if run is runs[1]:
            expected = 3 if checkpoint_at is None else 2 - checkpoint_at
            assert done.metrics.get("restore/replayed_versions", 0) == expected
            assert done.metrics.get("restore/diverged_versions", 0) == 0
            assert done.restore_s > 0
    for version in (1, 2, 3, 4):
        assert_equal(weights(runs[0], version), weights(runs[1], version))


@pytest.mark.parametrize("checkpoint_at", [None, 1])
def test_bfloat16_versions_restore_their_float32_masters(
    checkpoint_at: int | None, tmp_path: Path, tiny_model_dir: Path
) -> None:
    runs = [Job(tmp_path / name, tiny_model_dir) for name in ("steady", "killed")]
    for run in runs:
        trainer = new_trainer()
        for parent in range(3):
            if run is runs[1] and parent == 2:
                trainer = new_trainer()
            request = run.request(parent, checkpoint=parent == checkpoint_at, dtype="bfloat16")
            run.train(trainer, request)
    assert all(t.dtype == torch.bfloat16 for t in weights(runs[0], 3).values())
    assert_equal(weights(runs[0], 3), weights(runs[1], 3))


def test_replay_needs_only_the_manifests_of_collected_versions(job: Job) -> None:
    trainer = new_trainer()
    for parent in range(3):
        job.train(trainer, job.request(parent))
    collect(job.store, job.name, keep_last=1)
    with pytest.raises(TransientError, match="collected"):
        weights(job, 1)
    done = job.train(new_trainer(), job.request(3))
    assert done.metrics["restore/replayed_versions"] == 3
    assert done.metrics["restore/diverged_versions"] == 0


def test_committed_weights_win_over_a_replay_that_differs(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = new_trainer()
    for parent in range(2):
        job.train(trainer, job.request(parent))

    from functions.training import optimizer

    real = optimizer.learning_rate
    monkeypatch.setattr(  # as another machine's rounding would, only more so
        "functions.training.update.learning_rate", lambda *a: real(*a) * 1.001
    )
    other = new_trainer()
    done = job.train(other, job.request(2))
    assert done.metrics["restore/diverged_versions"] == 2
    monkeypatch.undo()
    # one more call from the parent's committed weights: near what the first instance would make
    steady, other_weights = weights(job, 2), weights(job, 3)
    step = 2 * 1e-3 * 1.01  # two optimizer steps of Adam move a weight by hardly more
    for name, tensor in steady.items():
        assert float((tensor - other_weights[name]).abs().max()) < 2 * step


def test_another_instance_moved_on_and_the_first_catches_up(job: Job) -> None:
    first, second = new_trainer(), new_trainer()
    job.train(first, job.request(0))
    job.train(second, job.request(1))
    done = job.train(first, job.request(2))
    assert done.metrics["restore/replayed_versions"] == 1  # from its own version 1, not from 0


def test_a_checkpoint_holds_tensors_only(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path, tiny_model_dir, algorithm=PPO)
    job.train(new_trainer(), job.request(0, checkpoint=True))
    manifest = read_manifest(job.store, job.name, 1)
    assert manifest is not None
    assert set(manifest.attachments) == {"optimizer", "critic", "critic_optimizer"}
    for label in manifest.attachments:
        assert load(read_attachment(job.store, job.name, 1, label))


@pytest.mark.parametrize("reason", ["deadline", "drain", "abort"])
def test_a_call_told_to_stop_commits_nothing_and_can_be_repeated(job: Job, reason: str) -> None:
    trainer = new_trainer()
    job.train(trainer, job.request(0))
    context = job.context()
    if reason == "deadline":
        context = CallContext(store=job.store, deadline=time.monotonic())
    else:
        context.stop(reason)  # type: ignore[arg-type]
    request = job.request(1)
    with pytest.raises(TransientError, match=reason):
        list(trainer.train(request, context))
    assert versions(job.store, job.name) == [1]
    interrupted = job.train(trainer, request)
    assert interrupted.version == 2
    # the update began anew: an instance that was never stopped makes the same
    fresh = Job(Path(job.store.url).with_name("fresh"), Path(job.model))
    other = new_trainer()
    for parent in range(2):
        fresh.train(other, fresh.request(parent))
    assert_equal(weights(job, 2), weights(fresh, 2))


def test_a_replay_cut_by_the_deadline_goes_on_where_it_was(job: Job) -> None:
    trainer = new_trainer()
    for parent in range(3):
        job.train(trainer, job.request(parent))
    late = new_trainer()
    for _ in range(2):
        with pytest.raises(TransientError, match="deadline"):
            list(late.train(job.request(3), CallContext(store=job.store, deadline=0.0)))
    done = job.train(late, job.request(3))
    assert done.metrics["restore/replayed_versions"] == 1


def test_a_failed_update_commits_nothing_and_spoils_nothing(job: Job) -> None:
    trainer = new_trainer()
    job.train(trainer, job.request(0))
    batch = make_batch(1)
    batch.rewards[0] = float("nan")
    with pytest.raises(UserError, match="reward"):
        job.train(trainer, job.request(1, batch=batch))
    job.settings = msgspec.structs.replace(SETTINGS, learning_rate=1e38)
    with pytest.raises(InternalError, match="nothing was committed"):
        job.train(trainer, job.request(1))
    assert versions(job.store, job.name) == [1]
    job.settings = SETTINGS
    assert job.train(trainer, job.request(1)).metrics["restore/diverged_versions"] == 0


def test_a_missing_batch_is_a_transient_error(job: Job) -> None:
    request = job.request(0)
    job.store.delete(request.batch.name)
    with pytest.raises(TransientError, match="batch"):
        job.train(new_trainer(), request)


def test_restoring_without_a_record_says_so(job: Job) -> None:
    trainer = new_trainer()
    for parent in range(2):
        job.train(trainer, job.request(parent))
    job.store.delete(manifest_name(job.name, 1))
    with pytest.raises(InternalError, match="version 1"):
        job.train(new_trainer(), job.request(2))


def test_jobs_do_not_mix(tmp_path: Path, tiny_model_dir: Path) -> None:
    one = Job(tmp_path, tiny_model_dir, name="one")
    two = Job(tmp_path, tiny_model_dir, name="two", algorithm=Algorithm(name="r", advantage="rloo"))
    shared, alone = new_trainer(), new_trainer()
    lone = Job(tmp_path / "lone", tiny_model_dir, name="one")
    for parent in range(2):
        one.train(shared, one.request(parent))
        two.train(shared, two.request(parent))
        lone.train(alone, lone.request(parent))
    assert_equal(weights(one, 2), weights(lone, 2))


def test_resumed_with_another_trainable_part_is_refused(job: Job) -> None:
    trainer = new_trainer()
    job.train(trainer, job.request(0, checkpoint=True))
    settings: Optimization = LORA
    job.settings = settings
    with pytest.raises(UserError, match="differ"):
        job.train(trainer, job.request(1))
