"""A real run as the simulator's input: the lengths of its responses, and what its calls took."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from controller.calibration import FILE
from rlhfless.errors import UserError
from rlhfless.measurements import Measurements, load_measurements
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec
from simulator.workload_fit import fit_lengths
from simulator.workload_trace import LengthTrace, read_run


@dataclass(frozen=True)
class Replay:
    """``lengths``: what was recorded, and behind it a model fitted to that, for prompts, samples
    and evaluations that were not. ``measurements`` None: the run has left none. ``spec``: the job
    as it was run."""

    spec: JobSpec
    lengths: LengthTrace
    measurements: Measurements | None
    steps: int
    """That were recorded."""


def read_replay(folder: str) -> Replay:
    """Read the folder of a run, finished or not. Raises ``UserError`` where it holds none, or none
    of its steps was committed."""
    spec = load_spec(_file(folder, "job.yaml"))
    groups = read_run(folder)
    model = replace(fit_lengths(groups, cap=spec.rollout.max_tokens), seed=spec.seed)
    path = os.path.join(folder, FILE)
    return Replay(
        spec=spec,
        lengths=LengthTrace(groups, model),
        measurements=load_measurements(path) if os.path.exists(path) else None,
        steps=len({group.step for group in groups}),
    )


def _file(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise UserError(
            f"{folder} is no folder of a run: it has no {name}",
            hint="name a folder that rlhfless run has made, e.g. runs/quickstart",
        )
    return path
