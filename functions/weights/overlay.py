"""Versions laid over a base model, in place, and taken off again exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from functions.weights.lora import delta, pairs
from rlhfless.errors import UserError
from rlhfless.versions import LoraConfig, Manifest


class Overlay:
    """A model whose parameters show one version at a time.

    Before a parameter is first overridden its base value is copied aside: on the model's device
    for LoRA, which merges from it every time; in host memory otherwise.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._pristine: dict[str, torch.Tensor] = {}
        self._overridden: set[str] = set()
        self._untied: list[tuple[Any, nn.Parameter]] = []

    def apply(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        """Show a version. Raises ``UserError``, changing nothing, if it does not fit the model."""
        if manifest.lora is not None:
            self._apply_lora(manifest, manifest.lora, tensors)
        else:
            self._apply_tensors(manifest, tensors)

    def clear(self) -> None:
        """Show the base."""
        self._restore_all_but(set())

    @torch.no_grad()
    def _apply_tensors(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        parameters = self._parameters()
        for name, tensor in tensors.items():
            if name not in parameters or parameters[name].shape != tensor.shape:
                raise _misfit(manifest, name)
        if self._untied:
            self._restore_all_but(set())
            self._retie()
            parameters = self._parameters()
        canonical = self._canonical(parameters)
        self._restore_all_but({canonical[name] for name in tensors})
        for name, tensor in tensors.items():
            self._keep_base(canonical[name], parameters[name], torch.device("cpu"))
            parameters[name].copy_(tensor)

    @torch.no_grad()
    def _apply_lora(
        self, manifest: Manifest, lora: LoraConfig, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        modules = dict(self.model.named_modules())
        targets = {name: (a, b) for name, a, b in pairs(tensors)}
        for name, (a, b) in targets.items():
            weight = getattr(modules.get(name), "weight", None)
            shape = (b.shape[0], a.shape[1])
            if weight is None or weight.shape != (
                shape[::-1] if _transposed(modules[name]) else shape
            ):
                raise _misfit(manifest, name)
        self._restore_all_but({f"{name}.weight" for name in targets})
        for name, (a, b) in targets.items():
            self._untie(modules[name])
            weight = modules[name].weight
            base = self._keep_base(f"{name}.weight", weight, weight.device)
            change = delta(a, b, lora, transposed=_transposed(modules[name]), device=weight.device)
            weight.copy_(base.to(weight.device, torch.float32) + change)

    def _untie(self, module: Any) -> None:
        """Give a LoRA target a weight of its own: an adapted head leaves the embedding as it is."""
        shared = module.weight
        if sum(p is shared for p in self._parameters().values()) > 1:
            self._untied.append((module, shared))
            module.weight = nn.Parameter(shared.clone(), requires_grad=False)
            self.model.config.tie_word_embeddings = False

    def _retie(self) -> None:
        """Undo ``_untie``; the weights must show the base."""
        for module, shared in self._untied:
            module.weight = shared
            self.model.config.tie_word_embeddings = True
        self._untied.clear()

    def _keep_base(self, name: str, weight: torch.Tensor, home: torch.device) -> torch.Tensor:
        if name not in self._pristine:
            self._pristine[name] = weight.to(home, copy=True)
        self._overridden.add(name)
        return self._pristine[name]

    @torch.no_grad()
    def _restore_all_but(self, names: set[str]) -> None:
        parameters = self._parameters()
        for name in self._overridden - names:
            parameters[name].copy_(self._pristine[name])
        self._overridden &= names

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Parameters by every name they have: tied ones appear under each."""
        return dict(self.model.named_parameters(remove_duplicate=False))

    @staticmethod
    def _canonical(parameters: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Name -> the first name of the same parameter."""
        first: dict[int, str] = {}
        return {name: first.setdefault(id(p), name) for name, p in parameters.items()}


def _transposed(module: nn.Module) -> bool:
    """GPT-2's ``Conv1D`` keeps its weight ``[in, out]``."""
    return type(module).__name__ == "Conv1D"


def _misfit(manifest: Manifest, name: str) -> UserError:
    return UserError(
        f"version {manifest.version} of job {manifest.job} does not fit the model: {name} is "
        "absent there or of another shape",
        param="model.path",
        hint="continue a run with the base model it was started with",
    )
