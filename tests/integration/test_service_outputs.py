"""What a job of a real service leaves, read over HTTP: the books agree, the log is there."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.conftest import SPECIAL_TOKENS
from tests.support.runs import STEPS, Workplace
from tests.support.services import cluster

pytestmark = pytest.mark.slow


def test_the_timeline_the_usage_and_the_log_of_a_job(place: Workplace) -> None:
    code = place.folder / "rewards.py"
    said = "    print('scoring, politely', flush=True)\n"
    code.write_text(code.read_text().replace("**columns):\n", f"**columns):\n{said}"))
    with cluster(place, own_redis=False) as service:
        service.start()
        with service.client() as client:
            job = client.jobs.submit(service.spec())
            assert client.jobs.wait(job).state == "succeeded"

            usage = client.jobs.usage(job)
            seconds: dict[tuple[str, str], float] = defaultdict(float)
            spans = list(client.jobs.timeline(job))
            for span in spans:
                assert span.end_at is not None
                seconds[span.function, span.phase] += span.end_at - span.start_at
            # The books are closed a moment before the last instances are gone.
            for function, used in usage.functions.items():
                for phase in ("cold", "busy", "idle"):
                    booked = getattr(used, f"{phase}_s")
                    assert seconds[function, phase] == pytest.approx(booked, abs=3.0)
            assert sum(seconds.values()) == pytest.approx(usage.total.held_s, abs=3.0)
            busy = {f: s for (f, phase), s in seconds.items() if phase == "busy"}
            assert busy.keys() == usage.functions.keys()
            assert [step.step for step in usage.data] == list(range(1, STEPS + 1))
            in_steps = sum(spent.held_s for step in usage.data for spent in step.functions.values())
            assert 0 < in_steps <= usage.total.held_s + 1e-6

            instances = {span.instance for span in spans}
            lines = list(client.jobs.logs(job))
            assert {line.source for line in lines} <= {"controller", *instances}
            assert len({line.id for line in lines}) == len(lines)
            assert any(line.text.endswith("scoring, politely") for line in lines)

            shown = list(client.jobs.rollouts(job, tokens=True))
            for sample in shown:
                assert sample.tokens is not None
                assert len(sample.tokens) == sample.num_tokens
                texts = [t.text for t in sample.tokens if t.text not in SPECIAL_TOKENS]
                assert "".join(texts) == sample.completion
                assert all(t.logprob is not None and t.logprob <= 0 for t in sample.tokens)
