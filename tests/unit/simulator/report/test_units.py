import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.report.units import (
    count,
    duration,
    held_scale,
    number,
    percent,
    room_around,
    several,
    share,
    time_scale,
    usd,
)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0.00 s"),
        (0.0421, "0.0421 s"),
        (12.34, "12.3 s"),
        (119.0, "119 s"),
        (250.0, "4.17 min"),
        (11_232.0, "3.12 h"),
        (400_000.0, "4.63 days"),
    ],
)
def test_durations_have_a_unit_that_fits(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_values_that_are_compared_share_unit_and_decimals() -> None:
    scale = time_scale([3_000.0, 12_000.0])
    assert (scale.unit, scale.show(12_000.0), scale.show(3_000.0)) == ("h", "3.33", "0.83")


def test_what_is_little_is_not_told_as_nothing() -> None:
    scale = held_scale([90_000.0, 3.0], "GPU")
    assert scale.unit == "GPU-h"
    assert (scale.show(90_000.0), scale.show(3.0), scale.show(0.0)) == ("25.0", "<0.1", "0.0")


def test_few_accelerator_seconds_are_told_in_seconds() -> None:
    assert held_scale([90.0], "core").tell(90.0) == "90.0 core-s"


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "unknown"), (0.0, "$0"), (0.0123, "$0.0123"), (12.5, "$12.50"), (1234.6, "$1,235")],
)
def test_an_unknown_price_is_not_zero(value: float | None, told: str) -> None:
    assert usd(value) == told


def test_shares() -> None:
    assert (percent(0.448), percent(0.001), percent(-0.3), percent(0.0)) == (
        "45%", "<1%", "-30%", "0%",
    )  # fmt: skip
    assert share(1.0, 0.0) == "-"


def test_counts() -> None:
    assert [count(7.0), count(12_345.0), count(15e6)] == ["7", "12,345", "15.0 M"]
    assert [several(1, "step"), several(1200, "step")] == ["1 step", "1,200 steps"]


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_numbers_keep_three_digits(value: float) -> None:
    told = float(number(value).replace(",", ""))
    assert told == pytest.approx(value, rel=6e-3)


def test_nearly_the_same_looks_nearly_the_same() -> None:
    low, high = room_around([69.7, 70.5])
    assert high - low > 10 * (70.5 - 69.7)
    assert room_around([2.0, 100.0])[0] == 0.0
    assert room_around([0.0, 0.0])[0] == 0.0
