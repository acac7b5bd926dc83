"""The model that is trained: which of its parameters, and how they become a version and back.

Parameters are float32 whatever the job's dtype: an update of 1e-6 is lost in bfloat16. Versions are
published in the job's dtype (adapters in float32), the float32 masters go into checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from functions.hidden import enable_packing
from functions.lm_head import backbone, lm_head, plain_model
from functions.modeling import load_base
from functions.training.group import SOLO, Group
from functions.training.shards import put, shard, slice_like, slice_of
from functions.weights.lora import adapter_config, adapter_tensors, load_adapter
from rlhfless.errors import UserError
from rlhfless.messages import ModelRef, Optimization
from rlhfless.versions import Kind, LoraConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KINDS: dict[str, Kind] = {"full": "full", "top_layers": "partial", "lora": "lora"}


class Policy:
    """A causal language model with its trainable part marked; ``seed`` starts the LoRA matrices."""

    def __init__(
        self,
        ref: ModelRef,
        settings: Optimization,
        device: torch.device,
        seed: int,
        group: Group = SOLO,
    ):
        place = loading_place(device, group)
        base = load_base(
            ModelRef(path=ref.path, job=ref.job, version=0, dtype="float32"), place
        ).eval()
        config = base.config.get_text_config()
        self.packs = enable_packing(base, config, place)
        self.model: Any = prepare(base, base.base_model, settings, seed)
        self.device = device
        self.kind = _KINDS[settings.trainable]
        self._dtype = torch.float32 if self.kind == "lora" else _DTYPES[ref.dtype]
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.vocabulary: int = self.plain.get_input_embeddings().num_embeddings
        if group.size > 1:
            lm_head(self.model)  # is verified while the model is whole
            shard(self.plain, blocks(self.backbone), group)

    @property
    def plain(self) -> Any:
        return plain_model(self.model)

    @property
    def backbone(self) -> Any:
        return backbone(self.model)

    @property
    def lora(self) -> LoraConfig | None:
        return adapter_config(self.model) if self.kind == "lora" else None

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that take gradients, tied ones once, by the names this model gives them."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def tensors(self) -> dict[str, Tensor]:
        """What a version consists of, in the dtype it is published in; of a group, each worker's
        slices (``functions.training.shards``)."""
        if self.kind == "lora":
            return adapter_tensors(self.model)
        return {name: p.detach().to(self._dtype) for name, p in self.trainable().items()}

    def masters(self) -> dict[str, Tensor]:
        """The float32 values a version loses by its dtype; empty where it loses none."""
        if self._dtype == torch.float32:
            return {}
        return {name: p.detach() for name, p in self.trainable().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a version's tensors, or masters. Raises ``UserError`` if they do not fit."""
        if self.kind == "lora":
            load_adapter(self.model, tensors, put)
            return
        own = self.trainable()
        if own.keys() != tensors.keys():
            odd = min(own.keys() ^ tensors.keys())
            raise UserError(
                f"the stored version and the job's training differ in {odd}",
                param="training.trainable",
                hint="continue a run with the trainable part it was started with",
            )
        for name, parameter in own.items():
            put(parameter, tensors[name])

    @torch.no_grad()
    def correct(self, tensors: Mapping[str, Tensor]) -> None:
        """Make ``tensors()`` equal ``tensors``, keeping masters that already round to them."""
        if self.kind == "lora" or self._dtype == torch.float32:
            self.load(tensors)
            return
        for name, parameter in self.trainable().items():
            own = slice_of(parameter)
            wanted = slice_like(parameter, tensors[name]).to(own.device)
            same = own.to(self._dtype) == wanted
            own.copy_(torch.where(same, own, wanted.float()))


def loading_place(device: torch.device, group: Group) -> torch.device:
    """Where a model is loaded: of a group's, a block at a time then goes to its device."""
    return device if group.size == 1 else torch.device("cpu")


def prepare(model: Any, inner: Any, settings: Optimization, seed: int) -> Any:
    """Mark the trainable part of ``model`` and return it, wrapped where it is LoRA.

    ``inner`` is the backbone in it (for a critic both are the same). Dropout of the base is off:
    the probabilities of a policy must not be random. Raises ``UserError`` for parts it does not
    have.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    match settings.trainable:
        case "full":
            model.requires_grad_(True)
        case "top_layers":
            model.requires_grad_(False)
            for part in top_parts(inner, settings.top_layers):
                part.requires_grad_(True)
        case "lora":
            model = _with_lora(model, settings, seed)
    if settings.gradient_checkpointing:
        _checkpoint_activations(plain_model(model))
    return model


def _checkpoint_activations(model: Any) -> None:
    """Non-reentrant, which needs no gradient at the input: frozen lower layers stay without any."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is None:  # its name in older releases of transformers 5
        enable = model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    model.disable_input_require_grads()


def top_parts(inner: nn.Module, count: int) -> list[nn.Module]:
    """The last ``count`` blocks of a backbone, and the final norm behind them."""
    found = _layers(inner)
    if found is None:
        raise UserError(
            f"{type(inner).__name__} has no list of layers",
            param="training.trainable",
            hint="use trainable: full or lora",
        )
    layers, behind = found
    if not 0 < count <= len(layers):
        raise UserError(
            f"the model has {len(layers)} layers, {count} cannot be trained",
            param="training.top_layers",
        )
    norms = [module for module in behind if "norm" in type(module).__name__.lower()]
    return [*list(layers)[-count:], *norms]


def blocks(inner: nn.Module) -> list[nn.Module]:
    """The layers of a backbone; none where it has no list of them."""
    found = _layers(inner)
    return [] if found is None else list(found[0])


def _layers(inner: nn.Module) -> tuple[nn.ModuleList, list[nn.Module]] | None:
    """The list of layers, and the modules that follow it."""
    for parent in inner.modules():
        children = list(parent.children())
        for index, child in enumerate(children):
            if isinstance(child, nn.ModuleList):
                return child, children[index + 1 :]
    return None


def _with_lora(model: Any, settings: Optimization, seed: int) -> Any:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return get_peft_model(
                model,
                PeftConfig(
                    r=settings.lora_rank,
                    lora_alpha=settings.lora_alpha,
                    lora_dropout=settings.lora_dropout,
                    target_modules=settings.lora_targets,
                ),
            )
        except ValueError as error:
            raise UserError(
                f"cannot add LoRA: {error}",
                param="training.lora.targets",
                hint="name the linear modules to adapt, such as [q_proj, v_proj]",
            ) from error
