"""What a job's committed steps no longer need, deleted by policy.

Weight versions go as ``rlhfless.versions.collect`` says. A step's batch stays until a checkpoint
covers it, since recovery replays the batches after the last checkpoint. Stored results of calls
only serve repeats of calls of the open step, and keys and values only the version they came from.
"""

from __future__ import annotations

from prefix_cache.evict import evict
from rlhfless.objects import ObjectStore
from rlhfless.versions import collect, last_checkpoint


def batch_name(job: str, step: int) -> str:
    return f"batches/{job}/step-{step:06d}.safetensors"


def collect_step(
    store: ObjectStore, job: str, *, step: int, version: int, keep_versions: int, kv_bytes: int
) -> None:
    """Clean up after ``step`` was committed and made ``version``. ``kv_bytes`` bounds the stored
    keys and values. Repeating it is harmless. Blocks."""
    collect(store, job, keep_last=keep_versions)
    evict(store, job, keep_version=version, max_bytes=kv_bytes)
    for name in store.list(f"results/{job}"):
        if name < f"results/{job}/step-{step + 1:06d}":
            store.delete(name)
    saved = last_checkpoint(store, job)
    for name in store.list(f"batches/{job}"):
        # Step s made version s + 1; the checkpoint holds what steps before it did.
        if saved is not None and name < batch_name(job, saved.version):
            store.delete(name)


def collect_job(store: ObjectStore, job: str) -> None:
    """Clean up after a job that will not go on: its checkpoints and samples stay. Repeating it is
    harmless. Blocks."""
    for kind in ("weights", "batches", "results", "kv"):
        for name in store.list(f"{kind}/{job}", unfinished=True):
            store.delete(name)


def remove_job(store: ObjectStore, job: str) -> None:
    """Remove all that an ended job has in the store. Repeating it is harmless. Blocks."""
    collect_job(store, job)
    for kind in ("samples", "checkpoints", "trackers"):
        for name in store.list(f"{kind}/{job}", unfinished=True):
            store.delete(name)


def is_checkpoint(steps: int, every: int, total_steps: int) -> bool:
    """Whether the version after ``steps`` steps is saved with its training state: each
    ``every``-th, and the last."""
    return steps == total_steps or steps % every == 0
