"""What a trainer has done to learners, whether one worker does it or several together.

The trainer decides (what is committed, which version to restore, what is cached) and a ``Crew``
carries out: ``Alone`` in this very process, ``functions.training.leading`` with followers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from functions.training import ahead
from functions.training.group import SOLO, Group
from functions.training.learner import Learner, Terms, pack
from functions.training.objective import Work
from functions.training.update import Update
from functions.weights.tensors import pull, read_attachment
from rlhfless.batches import decode_batch, read_batch
from rlhfless.messages import GradientsRequest, TrainRequest
from rlhfless.objects import ObjectStore
from rlhfless.versions import read_manifest


class Tensors(Protocol):
    """A learner's tensors, whole, each when it is asked for."""

    @property
    def version(self) -> Mapping[str, Tensor]:
        """What its version consists of, in the dtype it is published in."""
        ...

    def checkpoint(self) -> dict[str, bytes]:
        """The attachments of a checkpoint."""
        ...


class Crew(Protocol):
    """Generators yield between passes; one that is closed has stopped everywhere."""

    def build(self, request: Terms, seed: int) -> Learner:
        """At version 0."""
        ...

    def load(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        """Make it the version, which is a checkpoint. Raises as ``pull`` does."""
        ...

    def update(
        self, learner: Learner, store: ObjectStore, request: TrainRequest
    ) -> Generator[None, None, dict[str, float]]:
        """As ``Update.run`` with the request's batch."""
        ...

    def begin(self, learner: Learner, request: GradientsRequest) -> Work:
        """As ``ahead.begin``."""
        ...

    def correct(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        """As ``Policy.correct`` with the version's tensors. Raises as ``pull`` does."""
        ...

    def tensors(self, learner: Learner) -> AbstractContextManager[Tensors]:
        """Within it, ``learner`` is only read."""
        ...

    def close(self) -> None: ...


class Alone:
    """This process, as the only worker or as one of a ``group`` that all do the same."""

    def __init__(self, device: torch.device, group: Group = SOLO) -> None:
        self._device = device
        self._group = group

    def build(self, request: Terms, seed: int) -> Learner:
        return Learner(request, self._device, seed, self._group)

    def load(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        manifest = read_manifest(store, job, version)
        labels = () if manifest is None else manifest.attachments
        attachments = {label: read_attachment(store, job, version, label) for label in labels}
        learner.load(pull(store, job, version)[1], attachments)

    def update(
        self, learner: Learner, store: ObjectStore, request: TrainRequest
    ) -> Generator[None, None, dict[str, float]]:
        return Update(learner, request, read_batch(store, request.batch)).run()

    def begin(self, learner: Learner, request: GradientsRequest) -> Work:
        return ahead.begin(learner, request, decode_batch(request.batch))

    def correct(self, learner: Learner, store: ObjectStore, job: str, version: int) -> None:
        learner.policy.correct(pull(store, job, version)[1])

    @contextmanager
    def tensors(self, learner: Learner) -> Iterator[Tensors]:
        yield _Own(learner)

    def close(self) -> None:
        """Nobody else to be told."""


class _Own:
    def __init__(self, learner: Learner) -> None:
        self.version = learner.policy.tensors()
        self._learner = learner

    def checkpoint(self) -> dict[str, bytes]:
        return {label: pack(tensors) for label, tensors in self._learner.state().items()}
