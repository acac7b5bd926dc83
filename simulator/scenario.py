"""What a simulated job works on: its prompts and how long responses to them are."""

from __future__ import annotations

from dataclasses import dataclass

from controller.job import Prompt
from rlhfless.measurements import Measurements
from simulator.drafting import Drafting
from simulator.model_shape import ModelShape
from simulator.workload import Workload


@dataclass(frozen=True)
class Scenario:
    """``prompts`` and ``evaluation``: as ``controller.job.Data`` has them, their tokens real or
    made up; ``workload``: lengths of the responses; ``shape``: of the model; ``measurements``
    replace the roofline's constants where they are given; ``drafting`` None: none.
    ``assumptions``: what was not known and taken for granted, in words, one sentence each."""

    prompts: tuple[Prompt, ...]
    evaluation: tuple[Prompt, ...]
    workload: Workload
    shape: ModelShape
    measurements: Measurements | None = None
    drafting: Drafting | None = None
    assumptions: tuple[str, ...] = ()
