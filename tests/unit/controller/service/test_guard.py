import pytest

from controller.service.guard import BURST, MAX_ADDRESSES, REFILL_S, Guard
from controller.service.refusals import TooManyRequestsError


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def used_up(guard: Guard, address: str = "10.0.0.1") -> None:
    for number in range(BURST):
        guard.check(address, f"bad {number}")
        guard.failed(address, f"bad {number}")


def test_an_address_may_try_so_often_and_then_waits() -> None:
    clock = Clock()
    guard = Guard(clock)
    used_up(guard)
    with pytest.raises(TooManyRequestsError) as caught:
        guard.check("10.0.0.1", "bad")
    assert caught.value.retry_after_s == REFILL_S
    clock.now_s += caught.value.retry_after_s
    guard.check("10.0.0.1", "bad")
    guard.failed("10.0.0.1", "bad")
    with pytest.raises(TooManyRequestsError):
        guard.check("10.0.0.1", "bad")


def test_others_are_not_in_its_way() -> None:
    guard = Guard(Clock())
    guard.passed("good")
    used_up(guard)
    guard.check("10.0.0.1", "good")
    guard.check("10.0.0.2", "unknown")


def test_a_key_that_was_revoked_is_no_longer_known() -> None:
    guard = Guard(Clock())
    guard.passed("good")
    used_up(guard)
    guard.failed("10.0.0.1", "good")
    with pytest.raises(TooManyRequestsError):
        guard.check("10.0.0.1", "good")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("testclient", None, True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str | None, same: bool) -> None:
    guard = Guard(Clock())
    used_up(guard, one)
    if same:
        with pytest.raises(TooManyRequestsError):
            guard.check(other, "bad")
    else:
        guard.check(other, "bad")


def test_memory_is_bounded() -> None:
    guard = Guard(Clock())
    for number in range(MAX_ADDRESSES + 10):
        guard.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "bad")
        guard.passed(str(number))
    assert len(guard._buckets) == MAX_ADDRESSES
    assert len(guard._valid) < 2000
