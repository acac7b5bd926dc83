"""``docs/metrics.md`` lists the metrics that runs write: no more, no fewer.

The quick start, which has neither a KL penalty nor PPO, is held against it in
``test_run_quickstart.py``.
"""

from __future__ import annotations

import pytest

from tests.support.metrics_page import assert_as_documented
from tests.support.runs import Result, Workplace

pytestmark = pytest.mark.slow


def test_the_metrics_of_a_job_with_a_kl_penalty(undisturbed: Result) -> None:
    assert_as_documented(undisturbed.metrics, ["letters"], kl=True, ppo=False)


def test_the_metrics_of_ppo(place: Workplace) -> None:
    place.change_job(
        algorithm={"name": "ppo", "kl": {"coefficient": 0.0}},
        evaluation=None,
        training={"steps": 2},
    )
    ended = place.start_job().ended()
    assert ended.code == 0, ended.explained()
    assert len(place.result().metrics) == 2
    assert_as_documented(place.result().metrics, ["letters"], kl=False, ppo=True)
