import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.decode_cost import KEEP, DecodeCall, fit, remember


def test_recovers_what_the_calls_were_made_with() -> None:
    calls = [
        DecodeCall(iterations=i, tokens=t, decode_s=0.0015 * i + 0.00002 * t)
        for i, t in [(60, 2000), (40, 700), (56, 1500), (20, 800)]
    ]
    cost = fit(calls)
    assert cost is not None
    assert cost.iteration_s == pytest.approx(0.0015)
    assert cost.token_s == pytest.approx(0.00002)
    assert cost.seconds(60, 2000) == pytest.approx(0.13)


def test_nothing_measured() -> None:
    assert fit([]) is None


def test_only_calls_that_did_something_are_kept_and_not_too_many() -> None:
    some = DecodeCall(iterations=1, tokens=1, decode_s=0.1)
    none = DecodeCall(iterations=0, tokens=0, decode_s=0.0)
    assert remember([some], [none]) == [some]
    assert len(remember([some] * KEEP, [some])) == KEEP


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 5000), st.floats(0, 10)),
        min_size=1,
        max_size=20,
    )
)
def test_costs_are_never_negative(rows: list[tuple[int, int, float]]) -> None:
    cost = fit([DecodeCall(iterations=i, tokens=t, decode_s=s) for i, t, s in rows])
    assert cost is not None
    assert cost.iteration_s >= 0
    assert cost.token_s >= 0
