"""Which trackers there are, and what each needs to be installed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from controller.integrations.tracker import Tracker
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec


@dataclass(frozen=True)
class Kind:
    """``module`` is the library's; ``home`` the file here that alone imports it."""

    module: str
    extra: str
    home: str
    tracker: str


KINDS = {
    "tensorboard": Kind("tensorboardX", "tensorboard", "tensorboard", "TensorBoard"),
    "wandb": Kind("wandb", "wandb", "wandb", "Wandb"),
    "mlflow": Kind("mlflow", "mlflow", "mlflow", "Mlflow"),
    "trackio": Kind("trackio", "trackio", "trackio", "Trackio"),
}


def make_tracker(kind: str) -> Tracker:
    found = KINDS[kind]
    home = importlib.import_module(f"controller.integrations.{found.home}")
    tracker: Tracker = getattr(home, found.tracker)()
    return tracker


def require_installed(spec: JobSpec) -> None:
    """Raises ``UserError`` for a tracker whose library is not there; called before a job begins."""
    for index, integration in enumerate(spec.integrations):
        kind = KINDS[integration.type]
        found = importlib.util.find_spec(kind.module)
        # A folder of that name (W&B makes one) passes for a package without a file of its own.
        if found is None or found.origin is None:
            raise UserError(
                f"the integration {integration.type} needs the package {kind.module}, which is "
                "not installed",
                param=f"integrations.{index}.type",
                hint=f"pip install 'rlhfless[{kind.extra}]'",
            )
