from hypothesis import given
from hypothesis import strategies as st

from rlhfless.client.retries import FIRST_S, LONGEST_ASKED_S, LONGEST_S, delay_s


@given(st.integers(1, 5000), st.none() | st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_waits_grow_within_bounds(attempt: int, after_s: float | None, jitter: float) -> None:
    waited = delay_s(attempt, after_s, jitter)
    assert FIRST_S / 2 <= waited <= max(LONGEST_S, LONGEST_ASKED_S)
    assert waited >= min(after_s or 0.0, LONGEST_ASKED_S)
    assert delay_s(attempt + 1, after_s, jitter) >= waited


def test_waits_double() -> None:
    assert [delay_s(n, None, 0.0) for n in (1, 2, 3, 4)] == [0.2, 0.4, 0.8, 1.6]
    assert delay_s(1, None, 0.5) == 0.15000000000000002
