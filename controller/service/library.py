"""The operator's library: a folder of models, datasets and rewards that every tenant may name.

Names lead below the folder and nowhere else, whatever links lie in it. What is in use is read where
it lies, so an operator adds to the library and replaces nothing that jobs may still need.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from controller.service.references import check_name
from rlhfless.errors import NotFoundError

PREFIX = "library:"
MAX_DEPTH = 4
"""Folders below the library's in which a model is looked for."""
MAX_LISTED = 1_000


class LibraryModel(NamedTuple):
    """``name``: what a job writes behind ``library:``; ``added_at``: Unix seconds."""

    name: str
    added_at: float


class Library:
    """Methods block for as long as looking at a disk takes."""

    def __init__(self, folder: str | None) -> None:
        """``folder`` None: there is no library, and nothing is in it."""
        self._root = None if folder is None else os.path.realpath(folder)

    def path(self, name: str, param: str) -> str:
        """Where a thing of the library lies. Raises ``NotFoundError`` naming ``param``, with the
        same words for what is not there and what a link leads out to."""
        check_name(name, param)
        if self._root is None:
            raise NotFoundError("this service has no library", param=param)
        found = os.path.realpath(os.path.join(self._root, name))
        if not found.startswith(self._root + os.sep) or not os.path.exists(found):
            raise NotFoundError(f"the library has no {name!r}", param=param)
        return found

    def models(self) -> list[LibraryModel]:
        """Folders with a ``config.json``, by name."""
        found: list[LibraryModel] = []
        if self._root is not None:
            self._look(self._root, "", MAX_DEPTH, found)
        return sorted(found)[:MAX_LISTED]

    def _look(self, folder: str, name: str, depth: int, found: list[LibraryModel]) -> None:
        """Links to folders are not followed: a loop of them would have no end."""
        try:
            with os.scandir(folder) as entries:
                inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            if name and ("config.json", False) in inside:
                config = os.path.join(folder, "config.json")
                found.append(LibraryModel(name, os.stat(config).st_mtime))
                return
        except OSError:
            return  # not ours to read, or gone: nothing that a job could use
        for each, is_folder in inside:
            if is_folder and depth and not each.startswith("."):
                inner = f"{name}/{each}" if name else each
                self._look(os.path.join(folder, each), inner, depth - 1, found)
