"""What an image installs before our own code: ``python requirements.py pyproject.toml s3 k8s``.

Prints our dependencies and those of the extras named. Images install them in a layer of their own,
which a change of our code leaves as it is.
"""

from __future__ import annotations

import sys
import tomllib


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """Requirement strings, in order. Raises ``KeyError`` for an extra that there is not."""
    with open(pyproject, "rb") as file:
        project = tomllib.load(file)["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1], sys.argv[2:])))
