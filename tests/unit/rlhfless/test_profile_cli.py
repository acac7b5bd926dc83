from __future__ import annotations

import pytest

from rlhfless.cli.profile import seconds


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.34, "12.3 s"),
        (5.5e-4, "550 us"),
        (3.3e-10, "330 ps"),
        (0.0, "0 s"),
        (1e-15, "1.0e-15 s"),
    ],
)
def test_seconds_have_a_unit_that_fits(value: float, shown: str) -> None:
    assert seconds(value) == shown
