"""A learner at any committed version: from a checkpoint, and by making the versions since again.

A version's manifest holds the request that made it, and the store its batch; the same update on the
same state gives the same weights. Where the hardware is not that deterministic, the committed
weights win, for they are what everyone else has, and the replayed optimizer state is kept.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from functions.training.crew import Crew
from functions.training.learner import Learner, Terms
from functions.weights.tensors import holds
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import TrainRequest
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, read_manifest, versions


class Replay:
    """A learner on its way to a version. ``files`` names what it stands at, attempt and all."""

    def __init__(
        self, crew: Crew, store: ObjectStore, learner: Learner, version: int, files: frozenset[str]
    ) -> None:
        self.learner = learner
        self.version = version
        self.files = files
        self._crew = crew
        self._store = store
        self._replayed = 0
        self._diverged = 0

    def forward(self, job: str, target: int) -> Generator[None, None, None]:
        """Make the next version again; ``target`` is where the replay shall end.

        Raises ``TransientError`` if its batch is not in the store, or at the target its weights.
        """
        manifest = read_manifest(self._store, job, self.version + 1)
        request = _request(manifest, job, self.version + 1)
        assert manifest is not None
        yield from self._crew.update(self.learner, self._store, request)
        self._replayed += 1
        with self._crew.tensors(self.learner) as tensors:
            same = holds(manifest, tensors.version)
        if not same:
            self._diverged += 1
            try:
                self._crew.correct(self.learner, self._store, job, manifest.version)
            except TransientError:
                if manifest.version == target:
                    raise
                # Its weights are collected; the target's are not, and they set it right.
        self.version = manifest.version
        self.files = frozenset(manifest.files)

    def metrics(self) -> dict[str, float]:
        """Empty where nothing was replayed."""
        if not self._replayed:
            return {}
        return {
            "restore/replayed_versions": self._replayed,
            "restore/diverged_versions": self._diverged,
        }


def from_store(request: Terms, store: ObjectStore, crew: Crew) -> Replay:
    """A learner at the newest checkpoint at or before the request's parent, or at version 0."""
    job, parent = request.model.job, request.model.version
    for version in reversed([v for v in versions(store, job) if v <= parent]):
        manifest = read_manifest(store, job, version)
        if manifest is not None and manifest.attachments:
            learner = crew.build(request, request.seed)
            crew.load(learner, store, job, version)
            return Replay(crew, store, learner, version, frozenset(manifest.files))
    first = request if parent == 0 else _request(read_manifest(store, job, 1), job, 1)
    return Replay(crew, store, crew.build(request, first.seed), 0, frozenset())


def _request(manifest: Manifest | None, job: str, version: int) -> TrainRequest:
    if manifest is None or manifest.train_request is None:
        raise InternalError(
            f"training cannot be restored: how version {version} of job {job} was made is not "
            "known any more",
            hint="keep the manifests after the last checkpoint; rlhfless.versions.collect does",
        )
    return msgspec.convert(manifest.train_request, TrainRequest)
