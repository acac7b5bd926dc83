"""What the parts of a running job share: its spec, stores, way to the functions, and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.books import Books
from controller.collector import FinishedSample
from controller.control import UNHINDERED, Control
from controller.dataset import PromptOrder, Row
from controller.dispatch import Dispatcher
from controller.journal import Journal, Scores
from controller.ledger import Ledger
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec


@dataclass(frozen=True)
class Prompt:
    """A dataset row made ready: ``tokens`` are what the model sees, ``row`` what rewards see."""

    key: str
    row: Row
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """Something a watcher may care about; ``kind`` names it, ``data`` holds its values."""

    kind: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


Observer = Callable[[Event], None]


@dataclass(frozen=True)
class StepSamples:
    """A step's rollouts and rewards, for people to read. ``scores``, ``prompts``: by sample id."""

    step: int
    samples: Sequence[FinishedSample]
    scores: Mapping[str, Scores]
    prompts: Mapping[str, Prompt]


@dataclass(frozen=True)
class Data:
    """The job's datasets, read and tokenized. ``evaluation`` is empty where there is none."""

    tokenizer: PromptTokenizer
    stop_token_ids: list[int]
    prompts: list[Prompt]
    order: PromptOrder
    evaluation: list[Prompt]

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """What responses say, without the tokens they ended with."""
        return self.tokenizer.decode(responses, stop=self.stop_token_ids)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a request to a function is made of, beside the work itself."""

    id: str
    spec: JobSpec
    data: Data
    objects: ObjectStore


@dataclass(frozen=True, kw_only=True)
class Job(Surroundings):
    """A running job. Nothing in here changes the result of a step but ``spec`` and ``data``."""

    journal: Journal
    dispatcher: Dispatcher
    timeline: Timeline
    ledger: Ledger
    books: Books
    observe: Observer
    keep_samples: Callable[[StepSamples], None] = lambda _: None
    """Called in a thread, before the step is committed; again when a step is taken over."""
    control: Control = UNHINDERED

    @property
    def max_actors(self) -> int:
        """Rollout instances the job may have now."""
        most = self.control.most("rollout")
        largest = self.spec.rollout.max_instances
        return largest if most is None else max(1, min(most, largest))
