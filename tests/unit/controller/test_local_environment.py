"""What a function's process on this machine inherits."""

import pytest

from controller.platforms import local_processes


def test_functions_are_not_told_of_the_job_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:password@host")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    inherited = local_processes._environment()
    assert "password" not in str(inherited)
    assert inherited["HF_HOME"] == "/somewhere"
