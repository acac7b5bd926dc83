"""What a Python file needs from beside it: the modules of its own folder that it imports."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from rlhfless.errors import UserError, of_os_error


def with_siblings(source: str) -> dict[str, str]:
    """The ``.py`` files that ``source`` needs, itself among them: by their names below its folder,
    which is where Python looks first when a reward is loaded. Modules and packages of that folder
    are followed through what they import; data beside them is not seen. Raises ``UserError``."""
    folder = os.path.dirname(os.path.abspath(source))
    todo = [os.path.abspath(source)]
    found: dict[str, str] = {}
    while todo:
        file = todo.pop()
        name = os.path.relpath(file, folder).replace(os.sep, "/")
        if name in found:
            continue
        found[name] = file
        for module in _imported(file):
            todo += _files_of(folder, module)
    return found


def _imported(source: str) -> Iterator[str]:
    """First names of the modules that a file imports, anywhere in it."""
    try:
        with open(source, "rb") as file:
            tree = ast.parse(file.read(), source)
    except OSError as error:
        raise of_os_error(f"cannot read {source}", error) from error
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{source} is no Python file: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _files_of(folder: str, module: str) -> list[str]:
    """The files of a module or package in a folder; none if it is not there."""
    package = os.path.join(folder, module)
    if os.path.isfile(f"{package}.py"):
        return [f"{package}.py"]
    return [
        os.path.join(parent, name)
        for parent, _, names in os.walk(package)
        for name in names
        if name.endswith(".py")
    ]
