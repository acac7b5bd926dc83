"""A causal language model in its two halves: the backbone, and the head on chosen positions.

The forward of ``transformers`` models computes logits for every position of prompt and padding;
with a vocabulary of 49k words that is most of the memory and much of the time. Taken apart, the
head runs where a response token is predicted and nowhere else.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from rlhfless.errors import UserError


@dataclass(frozen=True)
class _Logits:
    """What a model does to its head's output: ``cap * tanh(scale * x / cap)``; cap 0 is none."""

    scale: float = 1.0
    cap: float = 0.0

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        scaled = raw if self.scale == 1.0 else raw * self.scale
        return torch.tanh(scaled / self.cap) * self.cap if self.cap else scaled


@dataclass(frozen=True)
class Head:
    """Hidden states ``[..., hidden]`` to logits ``[..., vocabulary]``, as the model makes them."""

    module: Any
    shape: _Logits = _Logits()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.shape(self.module(hidden))

    @property
    def vocabulary(self) -> int:
        return int(self.module.weight.shape[0])


_verified: weakref.WeakKeyDictionary[Any, _Logits] = weakref.WeakKeyDictionary()


def plain_model(model: Any) -> Any:
    """The ``transformers`` model, inside its peft wrapper if it has one."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def backbone(model: Any) -> Any:
    """The part that ends in hidden states. Raises ``UserError`` where a model has no such part."""
    plain = plain_model(model)
    inner = plain.base_model
    if inner is plain or plain.get_output_embeddings() is None:
        raise UserError(
            f"{type(plain).__name__} has no separate backbone and language-model head",
            param="model.path",
        )
    return inner


def lm_head(model: Any) -> Head:
    """The head of a model.

    Models differ in what they do to the head's output. The first time a model is seen the result
    is compared with the model's own forward pass; ``UserError`` if they differ.
    """
    plain = plain_model(model)
    shape = _verified.get(plain)
    if shape is None:
        shape = _shape_of(plain.config.get_text_config())
        _verify(plain, shape)
        _verified[plain] = shape
    return Head(plain.get_output_embeddings(), shape)


def _shape_of(config: Any) -> _Logits:
    """Gemma 2 caps, Cohere multiplies, Granite divides."""
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return _Logits(scale, float(getattr(config, "final_logit_softcapping", None) or 0.0))


@torch.no_grad()
def _verify(plain: Any, shape: _Logits) -> None:
    seen: list[torch.Tensor] = []
    hook = backbone(plain).register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.last_hidden_state)
    )
    try:
        tokens = torch.tensor([[0, 1]], device=plain.get_input_embeddings().weight.device)
        expected = plain(input_ids=tokens, use_cache=False).logits.float()
    finally:
        hook.remove()
    ours = Head(plain.get_output_embeddings(), shape)(seen[0]).float()
    tolerance = 1e-2 * expected.abs().max().clamp(min=1e-3)
    if ours.shape != expected.shape or not bool(((ours - expected).abs() <= tolerance).all()):
        raise UserError(
            f"{type(plain).__name__} changes its logits in a way that is not supported",
            param="model.path",
        )
