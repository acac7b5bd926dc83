"""The weight versions that a job made: one a step, each by its own call and on top of the one
before, with an optimizer that has counted as many steps. Looked at as soon as the job has ended."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator

from safetensors.numpy import load

from controller.garbage import collect_job
from rlhfless import rest
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, read_manifest, version_folder, versions


class Weights:
    """``by_variant``: what jobs that differ in nothing have ended with, and how many of them."""

    def __init__(self, store: str) -> None:
        self._objects = ObjectStore(store)
        self.by_variant: dict[int, Counter[str]] = defaultdict(Counter)

    def uneven(self) -> list[str]:
        return [
            f"jobs of variant {variant} learned different things: {dict(weights)}"
            for variant, weights in self.by_variant.items()
            if len(weights) > 1
        ]

    def checked(self, job: rest.Job, variant: int) -> list[str]:
        """What is wrong with those of a job that has just ended, in words; then they are removed,
        as the service does in ten minutes, or the disk would fill by itself. Blocks."""
        wrong = list(self._wrong(job, variant))
        collect_job(self._objects, job.id)
        return wrong

    def _wrong(self, job: rest.Job, variant: int) -> Iterator[str]:
        steps = job.progress.steps_done
        found = versions(self._objects, job.id)
        wanted = list(range(1, steps + 1))
        if job.state == "succeeded":
            if found != wanted:
                yield f"has the weight versions {found}"
                return
        elif found not in (
            wanted,
            [*wanted, steps + 1],
        ):  # one may not have been committed any more
            yield f"has the weight versions {found} after {steps} steps"
            return
        manifests = [m for v in found if (m := read_manifest(self._objects, job.id, v)) is not None]
        for manifest in manifests:
            step = manifest.version - 1
            if manifest.parent != step or manifest.call_id != f"step-{step:06d}/training/train":
                yield f"version {manifest.version} was made by {manifest.call_id}"
            counted = self._optimizer_steps(job.id, manifest)
            if counted not in (None, {manifest.version}):
                yield f"version {manifest.version} has an optimizer after {counted} steps"
        if job.state == "succeeded":
            last = manifests[-1]
            if self._optimizer_steps(job.id, last) is None:
                yield "has no training state in its last version"
            digests = sorted(self._tensors(job.id, last))
            whole = hashlib.sha256("".join(digests).encode()).hexdigest()[:12]
            self.by_variant[variant][whole] += 1

    def _optimizer_steps(self, job: str, manifest: Manifest) -> set[int] | None:
        """As the optimizer of a version counts them; None where its state is not kept."""
        label = manifest.attachments.get("optimizer")
        if label is None:
            return None
        name = f"{version_folder(job, manifest.version)}/{label}"
        try:
            state = load(self._objects.get(name))
        except FileNotFoundError:  # that of the last alone is
            return None
        return {int(value) for key, value in state.items() if key.startswith("step/")}

    def _tensors(self, job: str, manifest: Manifest) -> Iterator[str]:
        """A digest of each: files carry the name of the attempt that wrote them."""
        folder = version_folder(job, manifest.version)
        for name in {entry.file for entry in manifest.tensors.values()}:
            for tensor, value in load(self._objects.get(f"{folder}/{name}")).items():
                yield f"{tensor} {hashlib.sha256(value.tobytes()).hexdigest()}"
