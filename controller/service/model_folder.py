"""Model folders that users send or a Hub holds: what a loader would read, and nothing else.

Loading must read none of somebody else's files: an index of shards names files beside it (a loader
joins the names to the folder, ``..`` and all), and an adapter would name its base model by a path
of the sender's choosing. Weights are safetensors; where they are there, no loader opens a pickle.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rlhfless.errors import UserError

_PICKLES = (
    ".bin",
    ".pt",
    ".pth",
    ".pkl",
    ".pickle",
    ".ckpt",
    ".npy",
    ".npz",
    ".joblib",
    ".msgpack",
)
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
WEIGHTS = frozenset({"model.safetensors", "model.safetensors.index.json"})
"""One of which a model has."""
_MAX_JSON_BYTES = 64 << 20

HUB_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""What is downloaded of a model on the Hub."""
HUB_LEAVES_OUT = ("*/*", *_ADAPTERS)


def model_root(folder: str, param: str) -> str:
    """The model's folder: ``folder``, or the only one in it. Raises ``UserError`` naming ``param``
    for what is no model that may be loaded."""
    root = find_root(folder, "config.json")
    if root is None:
        hint = "send a tar of the folder that save_pretrained wrote"
        raise UserError("there is no config.json in the model", param=param, hint=hint)
    names = os.listdir(root)
    for name in names:
        if name in _ADAPTERS:
            hint = "merge it into its base model first (merge_and_unload)"
            raise UserError("the model is an adapter without its base", param=param, hint=hint)
        if name.endswith(".index.json"):
            _check_index(root, name, param)
    if not WEIGHTS & set(names):
        hint = "save it with save_pretrained, which writes them"
        raise UserError("there are no safetensors in the model", param=param, hint=hint)
    return root


def find_root(folder: str, *wanted: str) -> str | None:
    """``folder``, or the only folder in it, whichever has one of the ``wanted`` files; of a tar
    either is usual."""
    inside: list[str] = [os.path.join(folder, name) for name in os.listdir(folder)]
    folders = [path for path in inside if os.path.isdir(path)]
    roots: list[str] = [folder, *(folders if len(folders) == 1 else [])]
    for root in roots:
        if any(os.path.isfile(os.path.join(root, name)) for name in wanted):
            return root
    return None


def _check_index(root: str, name: str, param: str) -> None:
    shards = _read(os.path.join(root, name), param).get("weight_map")
    names = shards.values() if isinstance(shards, dict) else ()
    for shard in set(map(str, names)):
        if "/" in shard or "\\" in shard or not os.path.isfile(os.path.join(root, shard)):
            raise UserError(f"{name} names {shard[:80]!r}, which is not in the model", param=param)


def _read(path: str, param: str) -> dict[str, Any]:
    name = os.path.basename(path)
    try:
        if os.path.getsize(path) > _MAX_JSON_BYTES:
            raise UserError(f"{name} is too large", param=param)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{name} cannot be read: {error}", param=param) from error
    if not isinstance(found, dict):
        raise UserError(f"{name} is no JSON object", param=param)
    return found
