"""What a training instance keeps between calls: the policy, the critic and their optimizers.

Its state beside a version's tensors is a few safetensors blobs, attached to the versions that are
checkpoints: ``optimizer``, and where they exist ``masters``, ``critic`` and ``critic_optimizer``.
There is no random state to save: all randomness follows from the seeds of the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor

from functions.training.critic import Critic
from functions.training.group import SOLO, Group
from functions.training.optimizer import AdamW
from functions.training.policy import Policy
from rlhfless.errors import InternalError
from rlhfless.messages import GradientsRequest, TrainRequest
from rlhfless.seeds import derive

if TYPE_CHECKING:
    from functions.training.ahead import Ahead


Terms: TypeAlias = TrainRequest | GradientsRequest
"""What an update is made by; its batch comes beside it."""


class Learner:
    """State of a job's training at one version. Starts at version 0.

    ``seed`` starts the LoRA matrices: that of the request that makes version 1. ``ahead``: what is
    already done of the next update, its gradients in the policy's parameters.
    """

    def __init__(
        self, request: Terms, device: torch.device, seed: int, group: Group = SOLO
    ) -> None:
        settings, ref = request.optimization, request.model
        self.group = group
        self.seed = seed
        self.ahead: Ahead | None = None
        self.policy = Policy(ref, settings, device, derive(seed, "policy"), group)
        self.optimizer = AdamW(self.policy.trainable())
        self.critic: Critic | None = None
        self.critic_optimizer: AdamW | None = None
        if request.algorithm.advantage == "gae":
            self.critic = Critic(ref, settings, device, derive(seed, "critic"), group)
            self.critic_optimizer = AdamW(self.critic.trainable())

    def forget_ahead(self) -> None:
        """Free what was done of the next update."""
        self.ahead = None
        self.optimizer.forget_gradients()

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds beside the version's tensors, by attachment and name; of a group,
        each worker's slices."""
        parts = {"optimizer": self.optimizer.state()}
        if masters := self.policy.masters():
            parts["masters"] = masters
        if self.critic is not None and self.critic_optimizer is not None:
            parts["critic"] = dict(self.critic.trainable())
            parts["critic_optimizer"] = self.critic_optimizer.state()
        return parts

    def load(self, version: Mapping[str, Tensor], attachments: Mapping[str, bytes]) -> None:
        """Become the version with these tensors, saved with these attachments."""
        parts = {label: load(data) for label, data in attachments.items()}
        if "optimizer" not in parts:
            raise InternalError("the checkpoint has no optimizer state")
        self.policy.load(parts.get("masters", version))
        self.optimizer.load_state(parts["optimizer"])
        if self.critic is not None and self.critic_optimizer is not None:
            if "critic" not in parts or "critic_optimizer" not in parts:
                raise InternalError("the checkpoint has no value model")
            self.critic.load(parts["critic"])
            self.critic_optimizer.load_state(parts["critic_optimizer"])


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """An attachment."""
    data: bytes = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    return data
