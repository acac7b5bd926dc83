"""A model's own files: its tensors by name, mapped, so that only what is used is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers.utils import cached_file

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Checkpoint:
    """``path``: a folder, or a name on the Hub that is in the local cache."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] | None = None

    @property
    def names(self) -> list[str]:
        """Of all tensors, in the files' order."""
        return list(self._where())

    def tensor(self, name: str) -> Tensor:
        file = self._where()[name]
        if file not in self._files:
            self._files[file] = safe_open(file, framework="pt")
        tensor: Tensor = self._files[file].get_tensor(name)
        return tensor

    def whole_blocks(self, names: Iterable[str]) -> list[str]:
        """All tensors of the blocks that ``names`` are in, block by block."""
        touched = {block_of(name) for name in names}
        wanted = [name for name in self.names if block_of(name) in touched]
        more = [name for name in names if name not in self._where()]
        return sorted(wanted, key=block_of) + sorted(more)

    def close(self) -> None:
        self._files.clear()

    def _where(self) -> dict[str, str]:
        if self._file_of is None:
            index = self._file(_INDEX)
            if index is not None:
                with open(index, encoding="utf-8") as file:
                    files: dict[str, str] = json.load(file)["weight_map"]
                self._file_of = {name: self._existing(file) for name, file in files.items()}
            else:
                single = self._existing(_SINGLE)
                with safe_open(single, framework="pt") as opened:
                    self._file_of = dict.fromkeys(opened.keys(), single)
        return self._file_of

    def _existing(self, name: str) -> str:
        file = self._file(name)
        if file is None:
            raise FileNotFoundError(os.path.join(self._path, name))
        return file

    def _file(self, name: str) -> str | None:
        found: str | None = cached_file(
            self._path,
            name,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
        )
        return found


def block_of(name: str) -> str:
    """The module whose tensors are loaded together: up to the number of the layer, if it has one,
    else its parent."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1])
