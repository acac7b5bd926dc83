"""AdamW over named parameters, its schedule, and its state as plain tensors.

The learning rate is a function of the number of the train call (the parent version), never of a
counter that could be lost; all optimizer steps of one call use the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from functions.training.shards import gather, put
from rlhfless.errors import InternalError
from rlhfless.messages import Optimization


def learning_rate(optimization: Optimization, call: int, peak: float) -> float:
    """The rate of train call ``call`` (0 is the first).

    Linear warm-up ``peak * (call + 1) / (warmup_steps + 1)``, so that no call is wasted on a rate
    of zero; then the schedule over the calls that are left of ``total_steps``.
    """
    warmup = optimization.warmup_steps
    if call < warmup:
        return peak * (call + 1) / (warmup + 1)
    done = min(1.0, (call - warmup) / max(1, optimization.total_steps - warmup))
    match optimization.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1.0 - done)
        case "cosine":
            return peak * 0.5 * (1.0 + math.cos(math.pi * done))


class AdamW:
    """``torch.optim.AdamW`` over ``parameters`` by name, with clipping and portable state.

    The fused kernel: on a CPU three times as fast as ``foreach`` for a small model. Weight decay
    spares vectors (norms and biases), which it would only shrink.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._names = dict(parameters)
        self._parameters = list(self._names.values())
        matrices = [p for p in self._parameters if p.ndim >= 2]
        vectors = [p for p in self._parameters if p.ndim < 2]
        groups = [{"params": part} for part in (matrices, vectors) if part]
        self._adamw = torch.optim.AdamW(groups, fused=True)

    def step(self, settings: Optimization, rate: float) -> Tensor:
        """Clip, then step, then forget the gradients; returns their norm before clipping.

        Raises ``FloatingPointError``, having changed nothing, if the norm is not finite.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = gather(nn.utils.get_total_norm(gradients))
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm.item()}")
        if settings.grad_clip is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, settings.grad_clip, norm)
        for group in self._adamw.param_groups:
            vectors = group["params"][0].ndim < 2
            group["lr"] = rate
            group["betas"] = (settings.beta1, settings.beta2)
            group["eps"] = settings.epsilon
            group["weight_decay"] = 0.0 if vectors else settings.weight_decay
        self._adamw.step()
        self.forget_gradients()
        return norm

    @torch.no_grad()
    def scale_gradients(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def forget_gradients(self) -> None:
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """``exp_avg/<name>``, ``exp_avg_sq/<name>``, ``step/<name>``; empty before a first step.
        Of a group, each worker's slices (``functions.training.shards``)."""
        return {
            f"{key}/{name}": value
            for name, parameter in self._names.items()
            for key, value in self._adamw.state.get(parameter, {}).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned, in another process perhaps."""
        self._adamw.state.clear()
        for name, parameter in self._names.items():
            entries = {
                key: state[f"{key}/{name}"]
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}/{name}" in state
            }
            if not entries:
                continue
            if len(entries) != 3 or entries["exp_avg"].shape != parameter.shape:
                raise InternalError(f"the checkpoint's optimizer state does not fit {name}")
            self._adamw.state[parameter] = {
                key: _own(value.to(parameter.device, torch.float32), parameter)
                for key, value in entries.items()
            }


def _own(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """A copy to be written to; sharded as the parameter where it is of its shape."""
    if value.shape != parameter.shape:
        return value.clone()
    made = torch.zeros_like(parameter)
    put(made, value)
    return made.detach()
