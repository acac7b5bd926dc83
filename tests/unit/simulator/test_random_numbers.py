import numpy as np

from simulator.random_numbers import hashed, key_of, normal, uniform

MANY = np.arange(20_000, dtype=np.uint64)


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    drawn = uniform(hashed(1, MANY), 0)
    assert 0 < drawn.min() < 1e-3
    assert 1 - 1e-3 < drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert abs(counts - 2000).max() < 6 * np.sqrt(2000)


def test_normal_numbers_have_the_moments_they_should() -> None:
    drawn = normal(hashed(1, MANY), 0)
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.03
    assert abs((np.abs(drawn) < 1).mean() - 0.6827) < 0.02


def test_seeds_keys_and_streams_are_independent() -> None:
    first = normal(hashed(1, MANY, 0), 0)
    for other in (
        normal(hashed(2, MANY, 0), 0),
        normal(hashed(1, MANY, 1), 0),
        normal(hashed(1, 0, MANY), 0),
        normal(hashed(1, MANY, 0), 1),
        np.roll(first, 1),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.03


def test_a_number_does_not_depend_on_who_asks_with_it() -> None:
    together = uniform(hashed(-5, MANY[:, None], np.arange(3)), 4)
    alone = uniform(hashed(-5, MANY[17], 2), 4)
    assert together.shape == (20_000, 3)
    assert together[17, 2] == float(alone)


def test_keys_of_texts_are_stable_and_differ() -> None:
    assert key_of("a") == key_of("a") != key_of("b")
    assert key_of("prompt") == 14_832_251_758_147_735_480, "traces written before stay valid"
