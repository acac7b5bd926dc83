"""What a job's committed steps no longer need, deleted by policy.

Weight versions go as ``rlhfless.versions.collect`` says. A step's batch stays until a checkpoint
covers it, since recovery replays the batches after the last checkpoint. Stored results of calls
only serve repeats of calls of the open step.
"""

from __future__ import annotations

from rlhfless.objects import ObjectStore
from rlhfless.versions import collect


def batch_name(job: str, step: int) -> str:
    return f"batches/{job}/step-{step:06d}.safetensors"


def collect_step(
    store: ObjectStore, job: str, *, step: int, checkpoint: int, keep_versions: int
) -> None:
    """Clean up after ``step`` was committed; ``checkpoint`` is the newest version with a saved
    training state (0: none). Repeating it is harmless. Blocks."""
    collect(store, job, keep_last=keep_versions)
    for name in store.list(f"results/{job}/step-{step:06d}"):
        store.delete(name)
    for name in store.list(f"batches/{job}"):
        # Step s made version s + 1; the checkpoint holds what steps before it did.
        if name < batch_name(job, checkpoint):
            store.delete(name)


def last_checkpoint(steps: int, every: int, total_steps: int) -> int:
    """The newest checkpointed version after ``steps`` steps: each ``every``-th, and the last."""
    return steps if steps == total_steps else steps - steps % every
