import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from functions.rollout.randomness import Uniforms, splitmix64
from rlhfless import seeds


@given(st.integers(0, 2**63 - 1), st.integers(0, 3000), st.integers(1, 40))
def test_rows_equal_the_scalar_definition(seed: int, start: int, count: int) -> None:
    row = Uniforms().row(seed, start, start + count)
    assert row.dtype == np.float32
    assert row.tolist() == [seeds.uniform(seed, start + i) for i in range(count)]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_splitmix_equals_the_scalar_one(values: list[int]) -> None:
    mixed = splitmix64(np.array(values, dtype=np.uint64))
    assert mixed.tolist() == [seeds.splitmix64(value) for value in values]
