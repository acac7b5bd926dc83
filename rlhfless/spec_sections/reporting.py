"""Whom a job tells how it goes: experiment trackers, and URLs that hear of its states."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from rlhfless.spec_sections.base import Section

Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]
JobEvent = Literal[
    "queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled", "step"
]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+\S*$")]


class IntegrationSpec(Section):
    """An experiment tracker that gets the metrics of every step and evaluation.

    It never holds the job up, and what it cannot take does not fail the job
    (``docs/integrations.md``).
    """

    type: Tracker
    project: str = Field(default="rlhfless", min_length=1)
    """W&B project (``entity/project`` for a team's), MLflow experiment or trackio project;
    TensorBoard has none."""
    run: str | None = Field(default=None, min_length=1)
    """Name of the run; default: the job's name."""
    url: str | None = Field(default=None, min_length=1)
    """MLflow tracking URI, W&B server, or trackio server. Default: the library's own (the service
    needs it for MLflow and trackio)."""
    api_key: SecretStr | None = Field(default=None, min_length=4)
    """Default for ``rlhfless run``: what the library finds in its environment."""
    tags: list[str] = []
    """For W&B and MLflow."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.type == "tensorboard" and (self.url is not None or self.api_key is not None):
            raise ValueError("tensorboard writes files: it takes no url and no api_key")
        if self.url is not None and "write_token=" in self.url:
            raise ValueError("give the write token as api_key: a url is shown to whoever may look")
        return self


class WebhookSpec(Section):
    """A URL that gets a signed JSON message when the job changes its state."""

    url: Url
    events: list[JobEvent] = Field(
        default=["running", "paused", "succeeded", "failed", "cancelled"], min_length=1
    )
    """The states that are told of; ``step``: every step with its metrics."""
    secret: SecretStr | None = Field(default=None, min_length=8)
    """Key of the signature ([Standard Webhooks](https://www.standardwebhooks.com)); without one
    messages are not signed."""
