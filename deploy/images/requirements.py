"""What an image installs before our own code, with the versions that it installs.

``python requirements.py pyproject.toml data k8s`` prints our dependencies and those of the extras
named; ``python requirements.py --constraints ROOT IMAGES`` the constraints of the first file, but
for packages that the second has, that one's. Images install them in a layer of their own, which a
change of our code leaves as it is.
"""

from __future__ import annotations

import re
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


def constraints(*paths: str) -> list[str]:
    """``name==version`` of all files; where several have a package, the last one's."""
    found: dict[str, str] = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in map(str.strip, file):
                if line and not line.startswith("#"):
                    found[_canonical(line.partition("==")[0])] = line
    return list(found.values())


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> None:
    if arguments[0] == "--constraints":
        lines = constraints(*arguments[1:])
    else:
        lines = requirements(arguments[0], arguments[1:])
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
