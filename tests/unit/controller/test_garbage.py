from pathlib import Path

import msgspec
import pytest

from controller.garbage import batch_name, collect_step, is_checkpoint
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, manifest_name


@pytest.mark.parametrize(
    ("steps", "every", "total", "expected"),
    [(3, 5, 12, False), (5, 5, 12, True), (12, 5, 12, True), (11, 5, 12, False)],
)
def test_which_versions_are_checkpoints(steps: int, every: int, total: int, expected: bool) -> None:
    assert is_checkpoint(steps, every, total) is expected


def test_what_replay_needs_stays(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    for step in range(6):
        store.put(batch_name("job", step), b"batch")
        store.put(f"results/job/step-{step:06d}/reward/abc", b"result")
        manifest = Manifest(
            job="job",
            version=step + 1,
            parent=step,
            call_id=f"train-{step}",
            kind="full",
            tensors={},
            files={},
            attachments={"optimizer": "file"} if step + 1 == 4 else {},
        )
        store.put(manifest_name("job", step + 1), msgspec.json.encode(manifest))
    store.put(batch_name("other", 0), b"batch")
    for version in (4, 5):
        store.put(f"kv/job/v{version:06d}/abc", b"keys and values")
    collect_step(store, "job", step=4, version=5, keep_versions=2, kv_bytes=1 << 20)
    # Version 4 was made by step 3; after a loss steps 4 and 5 are replayed, whatever the spec says
    # of checkpoints now.
    assert store.list("batches") == sorted(
        [batch_name("job", 4), batch_name("job", 5), batch_name("other", 0)]
    )
    assert store.list("results/job") == ["results/job/step-000005/reward/abc"]
    assert store.list("kv/job") == ["kv/job/v000005/abc"]
