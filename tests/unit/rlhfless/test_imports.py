"""Start-up stays cheap, and the flat packages are ours alone."""

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

HEAVY = ("torch", "transformers", "fastapi", "vllm", "ray", "kubernetes", "redis", "numpy")
PACKAGES = ("rlhfless", "functions", "controller", "prefix_cache", "scaling", "simulator")


@pytest.mark.parametrize("statement", ["import rlhfless", "import rlhfless.cli.main"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    code = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_claims_our_packages(package: str) -> None:
    assert set(packages_distributions().get(package, [])) <= {"rlhfless"}
