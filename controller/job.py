"""What the parts of a running job share: its spec, stores, way to the functions, and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controller.dataset import PromptOrder, Row
from controller.dispatch import Dispatcher
from controller.job_store import JobStore
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
class Job:
    """A job's fixed surroundings. Nothing in here changes the result of a step but ``spec``,
    ``prompts`` and ``order``."""

    id: str
    spec: JobSpec
    prompts: list[Prompt]
    order: PromptOrder
    evaluation: list[Prompt]
    tokenizer: PromptTokenizer
    stop_token_ids: list[int]
    objects: ObjectStore
    journal: JobStore
    dispatcher: Dispatcher
    timeline: Timeline
    ledger: Ledger
    observe: Observer
