"""The models that benchmarks run on: the quick start's, and SmolLM2-135M-Instruct if it is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = _ROOT / "examples" / "quickstart" / "model"
SMOLLM2 = _ROOT / ".cache" / "smollm2"

CONTEXT = 2048
"""Longer than the quick start's own context, so that long prompts can be timed on it (its rotary
positions have no table that could run out)."""


def available() -> dict[str, Path]:
    """Name in the reports -> folder, of those that are on this machine."""
    known = {"quickstart": QUICKSTART, "smollm2": SMOLLM2}
    return {name: path for name, path in known.items() if (path / "config.json").exists()}


def load(path: Path) -> Any:
    """The model in float32, eval mode, with room for ``CONTEXT`` positions; no end of sequence."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path)
    config.max_position_embeddings = max(CONTEXT, config.max_position_embeddings)
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
