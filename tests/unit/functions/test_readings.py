"""What a function's code counts is served to Prometheus as it is at the scrape."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from functions.context import FunctionConfig
from functions.metrics import Metrics
from functions.readings import Measured, Reading
from functions.rollout import app
from functions.rollout.vllm_engine.stats import EngineStats
from functions.shell import create_app
from rlhfless.messages import FunctionName
from tests.support.shell import Echo


def scraped(metrics: Metrics) -> dict[tuple[str, str], tuple[str, float]]:
    """(name, labels but ``function``) -> type and value."""
    return {
        (sample.name, ",".join(v for k, v in sorted(sample.labels.items()) if k != "function")): (
            family.type,
            sample.value,
        )
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


class Engine(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.stats = EngineStats()

    def readings(self) -> Sequence[Reading]:
        return list(self.stats.readings())


def shell_metrics(function: Echo, name: FunctionName = "rollout") -> Metrics:
    metrics: Metrics = create_app(name, function, "token").state.shell.metrics
    return metrics


def test_readings_are_taken_at_every_scrape() -> None:
    engine = Engine()
    metrics = shell_metrics(engine)
    before = scraped(metrics)
    assert before["rlhfless_engine_running", ""] == ("gauge", 0)
    engine.stats.asked, engine.stats.running, engine.stats.kv_usage = 4, 3, 0.25
    engine.stats.local = 896
    engine.stats.ttft_s, engine.stats.first_tokens = 1.5, 6
    engine.stats.updated(2.0, 1000)
    engine.stats.accepted_tokens = 7
    after = scraped(metrics)
    assert after["rlhfless_engine_running", ""] == ("gauge", 3)
    assert after["rlhfless_engine_kv_usage", ""] == ("gauge", 0.25)
    assert after["rlhfless_engine_prompt_tokens_total", "local"] == ("counter", 896)
    assert after["rlhfless_engine_prompt_tokens_total", "computed"] == ("counter", 0)
    assert after["rlhfless_engine_ttft_seconds_sum", ""] == ("summary", 1.5)
    assert after["rlhfless_engine_ttft_seconds_count", ""] == ("summary", 6)
    assert after["rlhfless_engine_weight_update_seconds_sum", ""] == ("summary", 2)
    assert after["rlhfless_engine_weight_update_seconds_count", ""] == ("summary", 1)
    assert after["rlhfless_engine_weight_update_bytes_total", ""] == ("counter", 1000)
    assert after["rlhfless_engine_accepted_tokens_total", ""] == ("counter", 7)


def test_every_series_says_whose_it_is() -> None:
    text = shell_metrics(Engine()).text().decode()
    series = [line for line in text.splitlines() if line.startswith("rlhfless_engine")]
    assert len(series) > 10
    assert all('function="rollout"' in line for line in series)


def test_an_engine_that_has_no_samples_runs_none_whatever_it_told_last() -> None:
    engine = Engine()
    engine.stats = EngineStats(
        asked=0, running=2, waiting=1, kv_usage=0.5, iterations=9, kv_blocks=8, block_tokens=16
    )
    found = scraped(shell_metrics(engine))
    for name in ("running", "waiting", "kv_usage"):
        assert found[f"rlhfless_engine_{name}", ""] == ("gauge", 0)
    assert found["rlhfless_engine_iterations_total", ""] == ("counter", 9)
    assert engine.stats.kv_tokens == 0
    engine.stats.asked = 9
    assert engine.stats.kv_tokens == 64


def test_functions_without_readings_have_none() -> None:
    assert not any(name.startswith("rlhfless_engine") for name, _ in scraped(shell_metrics(Echo())))


def test_the_rollout_function_passes_on_what_its_engine_tells() -> None:
    function = app.create(FunctionConfig())
    assert isinstance(function, Measured)
    assert list(function.readings()) == []  # transformers' tells nothing
    function.close()
    told = app.Rollout(Engine())  # type: ignore[arg-type]
    assert {reading.name for reading in told.readings()} >= {"engine_running", "engine_drafts"}
