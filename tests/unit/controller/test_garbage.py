from pathlib import Path

import pytest

from controller.garbage import batch_name, collect_step, last_checkpoint
from rlhfless.objects import ObjectStore


@pytest.mark.parametrize(
    ("steps", "every", "total", "checkpoint"),
    [(3, 5, 12, 0), (5, 5, 12, 5), (9, 5, 12, 5), (12, 5, 12, 12), (11, 5, 12, 10)],
)
def test_the_newest_checkpoint(steps: int, every: int, total: int, checkpoint: int) -> None:
    assert last_checkpoint(steps, every, total) == checkpoint


def test_what_replay_needs_stays(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    for step in range(6):
        store.put(batch_name("job", step), b"batch")
        store.put(f"results/job/step-{step:06d}/reward/abc", b"result")
    store.put(batch_name("other", 0), b"batch")
    collect_step(store, "job", step=5, checkpoint=4, keep_versions=2)
    # Version 4 was made by step 3; after a loss steps 4 and 5 are replayed.
    assert store.list("batches") == sorted(
        [batch_name("job", 4), batch_name("job", 5), batch_name("other", 0)]
    )
    assert not store.list("results/job/step-000005")
    assert len(store.list("results/job")) == 5
