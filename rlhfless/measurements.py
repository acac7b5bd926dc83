"""Measured constants of a model on some machine, which replace those of the roofline.

A file (``measurements.json``) that ``rlhfless profile`` writes and ``--calibrate`` reads; a run's
folder holds one as well (``calibration.json``), for ``--replay``. Seconds, bytes, tokens. What is
left out is not known, and the roofline says it instead. Linear costs are lists of coefficients in
the order of ``scaling.cost_model.PRIORS``::

    {"source": "rlhfless profile", "machine": "2 x Xeon", "date": "2026-11-21", "model": "...",
     "rollout": {"decode": [1.5e-3, 2e-5, 1e-7], "prefill": [2e-3, 3e-5], "max_batch": 64},
     "training": {"update": [0.3, 1e-4]}, "reward": [2e-3, 1e-5],
     "cold_start_s": {"rollout": 2.1}, "call_s": {"reward": 4e-3}, "step_s": 0.02}
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhfless.errors import of_os_error
from rlhfless.messages import FunctionName
from rlhfless.spec_file import read_mapping, user_error

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Linear: TypeAlias = tuple[Seconds, Seconds]
"""Seconds of a call, and of every unit of what it works on."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RolloutMeasured(Section):
    """One rollout instance."""

    decode: tuple[Seconds, Seconds, Seconds] | None = None
    """Seconds of an iteration, of each row in it, and of each token some row attends to."""
    prefill: Linear | None = None
    """Of a pass, and of a prompt token that is run through the model."""
    weights_pull: Linear | None = None
    """Of a pull, and of a byte."""
    kv_load: Linear | None = None
    """Of a segment of keys and values, and of a byte."""
    kv_publish: Linear | None = None
    """Of a call that stores some, and of a byte."""
    max_batch: Count | None = None
    """Samples decoded together at most."""
    kv_capacity_tokens: Count | None = None
    """Tokens whose keys and values an instance holds."""
    kv_token_bytes: Count | None = None
    """Bytes of a stored token's keys and values."""


class TrainingMeasured(Section):
    """The training instance."""

    update: Linear | None = None
    """Of a train call up to the new weights, and of a token of its batch that is computed there."""
    gradients: Linear | None = None
    """Of a call that begins an update beside the rollout, and of a token of its part."""
    publish_s: Seconds | None = None
    """Until a new version can be read."""
    weights_bytes: Count | None = None
    """Bytes of a version."""


class Measurements(Section):
    """What was measured, and where. See the module's docstring."""

    source: str = ""
    """What measured it: a command, or a run's folder."""
    machine: str = ""
    date: str = ""
    """ISO 8601."""
    model: str = ""
    """Path or name of the model it is true of."""
    rollout: RolloutMeasured = RolloutMeasured()
    training: TrainingMeasured = TrainingMeasured()
    reward: Linear | None = None
    """Of a call, and of a sample, over all rewards of the job."""
    reference: Linear | None = None
    """Of a call, and of a token (prompts included)."""
    cold_start_s: dict[FunctionName, Seconds] = {}
    """From the request for an instance until it is ready, by function."""
    load_s: dict[FunctionName, Seconds] = {}
    """What an instance's first call takes longer: weights, compilation, processes of rewards."""
    call_s: dict[FunctionName, Seconds] = {}
    """Of carrying a call, beside what the function works on it: HTTP, framing, the loop."""
    step_s: Seconds | None = None
    """Of the controller itself in a step, while no call is under way."""


def load_measurements(path: str) -> Measurements:
    """Read a measurements file. Raises ``UserError`` that names the field at fault."""
    raw = read_mapping(path, "measurements file", "rollout, training, reward, ...")
    try:
        return Measurements.model_validate(raw)
    except ValidationError as error:
        raise user_error(error, Measurements, "measurements") from None


def save_measurements(path: str, measurements: Measurements) -> None:
    """Write a measurements file as a whole; what is unknown is left out."""
    temporary = path + ".tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(as_json(measurements), file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise of_os_error(f"cannot write {path}", error) from error


def merged(older: Measurements, newer: Measurements) -> Measurements:
    """All of ``newer``, and of ``older`` what ``newer`` does not know."""
    return Measurements.model_validate(_over(as_json(older), as_json(newer)))


def as_json(measurements: Measurements) -> dict[str, Any]:
    """As it is written."""
    raw = measurements.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in raw.items() if value not in ("", {})}


def _over(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    result = older | newer
    for name, value in newer.items():
        if isinstance(value, dict) and isinstance(older.get(name), dict):
            result[name] = _over(older[name], value)
    return result
