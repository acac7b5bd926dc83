"""What a job leaves, made up: answers to the page's questions about a job that nobody ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rlhfless import rest
from tests.support.browser import Watched

Open = Callable[..., Watched]
"""Opens a tab (fixture ``opened``)."""
TABS = ["overview", "samples", "plans", "usage", "checkpoints", "events", "logs", "spec"]
HOSTILE = (
    '<img src=x onerror="window.taken=1"><script>window.taken=1</script>'
    "\u202e&lt;b&gt; {{7*7}} javascript:window.taken=1"
)
STEPS = 12
FUNCTIONS = ("rollout", "reward", "training")
ALPHABET = "abcdefgh"


class Answers:
    """A job's outputs as the service would answer them: ``paged(subject, url)``."""

    def __init__(self, job: str, begin: float, steps: int = STEPS, hostile: str = "") -> None:
        self.job = job
        self.begin = begin
        self.steps = steps
        self.hostile = hostile
        """Put into every text that comes from a job."""
        self._subjects: dict[str, Callable[[dict[str, str]], Iterable[rest.Document]]] = {
            "metrics": lambda _: map(self._metrics, range(1, self.steps + 1)),
            "plans": lambda _: map(self._plan, range(1, self.steps + 1)),
            "rollouts": self._rollouts,
            "timeline": lambda _: self._spans(),
            "checkpoints": lambda _: self._checkpoints(),
            "logs": lambda _: self._logs(),
        }

    def answer(self, url: str) -> dict[str, Any] | None:
        """The answer to GET ``url``; None: it is not about outputs."""
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        subject = parts.path.rpartition("/")[2]
        if subject == "usage":
            return self._usage(query).model_dump(mode="json")
        if subject not in self._subjects:
            return None
        entries = list(self._subjects[subject](query))
        page, more = _paged(entries, query)
        return rest.Page(data=page, has_more=more).model_dump(mode="json")

    def _metrics(self, step: int) -> rest.StepMetrics:
        metrics = {
            "step": float(step),
            "reward/mean": 0.9 - 0.55 * math.exp(-step / 6) + 0.02 * math.sin(step * 2.1),
            "reward/std": 0.3 + 0.01 * math.cos(step),
            "response_length/mean": 20 + 1.2 * math.sin(step),
            "policy/kl": 0.002 + 0.001 * math.cos(step / 2),
            "time/step_s": 1.9,
        }
        return rest.StepMetrics(id=str(step), step=step, metrics=metrics)

    def _plan(self, step: int) -> rest.StepPlan:
        alternatives = [
            {
                "actors": actors,
                "strategy": strategy,
                "seconds": 1.6 / actors + 0.2,
                "function_seconds": 1.6 + 0.3 * actors,
                "score": 0.9 + abs(actors - 2) / 10 + 0.02 * (strategy == "balanced"),
                "chosen": (actors, strategy) == (2, "sorted"),
            }
            for actors in (1, 2, 3)
            for strategy in ("sorted", "balanced", "group_affine")
        ]
        plan = {
            "actors": 2,
            "strategy": "sorted",
            "reason": "two actors take 1.00 s and 2.20 function-seconds: one would take 1.8 times "
            "as long, three would cost more than they save" + self.hostile,
            "alternatives": alternatives,
            "outcome": {"seconds": 1.04, "predicted_s": 1.0, "moved": 1, "released": 1},
            "prefix": {"reason": "32 prompts are prefilled once for 8 samples each"},
        }
        return rest.StepPlan(id=str(step), step=step, plan=plan)

    def _rollouts(self, query: dict[str, str]) -> list[rest.Rollout]:
        step = int(query.get("step", self.steps))
        found = [self._rollout(step, n, query.get("tokens") == "true") for n in range(24)]
        sort = query.get("sort", "")
        if sort:
            found.sort(key=lambda one: one.reward, reverse=sort.startswith("-"))
        return found

    def _rollout(self, step: int, number: int, with_tokens: bool) -> rest.Rollout:
        letters = [ALPHABET[(number + k) % 8] for k in range(4)]
        prompt: Any = "".join(f"{letter}{k}" for k, letter in enumerate(letters)) + "?"
        right = number % 3 != 0
        said = ";".join(f"{letter}{k}={k + 3 + (not right)}" for k, letter in enumerate(letters))
        text = said + self.hostile
        if number % 2:
            system = {"role": "system", "content": "Copy the letters and add three to the digits."}
            prompt = [system, {"role": "user", "content": prompt + self.hostile}]
        tokens = [
            rest.TokenShown(text=letter, logprob=-5.0 * abs(math.sin(place * 1.7 + number)) ** 6)
            for place, letter in enumerate(text)
        ]
        return rest.Rollout(
            id=f"{step}-{number}",
            step=step,
            prompt=prompt,
            completion=text,
            reward=float(right) + number / 1000,
            rewards={"exact_match": float(right), "brevity": None if number % 5 == 0 else 0.25},
            num_tokens=len(tokens),
            finish_reason="stop",
            version=step - 1,
            tokens=tokens if with_tokens else None,
        )

    def _spans(self) -> list[rest.Span]:
        lives = [
            ("rollout", "rollout-1", 0.0, 0.55),
            ("rollout", "rollout-2", 0.3, 0.35),
            ("reward", "reward-1", 0.1, 0.12),
            ("training", "training-1", 0.0, 0.4),
        ]
        spans: list[rest.Span] = []

        def add(instance: str, function: str, phase: rest.Phase, start: float, end: float) -> None:
            span = rest.Span(
                id=f"{len(spans)}-0",
                instance=instance,
                function=function,
                phase=phase,
                start_at=self.begin + start,
                end_at=self.begin + end,
            )
            spans.append(span)

        for function, instance, late, share in lives:
            add(instance, function, "cold", 4 * late, 4 * late + 3)
            at = 4 * late + 3
            for step in range(self.steps):
                begin = 5 + 2.0 * step + (1.15 if function == "training" else 0.1)
                add(instance, function, "idle", at, begin)
                at = begin + 2.0 * share
                add(instance, function, "busy", begin, at)
        spans.sort(key=lambda span: span.end_at or 0)
        return [span.model_copy(update={"id": f"0-{n}"}) for n, span in enumerate(spans)]

    def _spent(self, share: float) -> rest.Spent:
        return rest.Spent(
            held_s=30 * share, busy_s=19 * share, idle_s=8 * share, cold_s=3 * share, usd=0.012
        )

    def _usage(self, query: dict[str, str]) -> rest.Usage:
        steps = [
            rest.StepSpent(
                id=str(step), step=step, functions={f: self._spent(0.1) for f in FUNCTIONS}
            )
            for step in range(1, self.steps + 1)
        ]
        page, more = _paged(steps, query)
        return rest.Usage(
            total=self._spent(3.0),
            functions={function: self._spent(1.0) for function in FUNCTIONS},
            wall_s=31.0,
            data=page,
            has_more=more,
        )

    def _checkpoints(self) -> list[rest.Checkpoint]:
        files = [
            rest.StoredFile(name="config.json", bytes=714, sha256="0" * 64),
            rest.StoredFile(name="model.safetensors", bytes=1_741_376, sha256="1" * 64),
        ]
        return [
            rest.Checkpoint(
                id=f"{step}",
                created_at=self.begin + 2 * step,
                job=self.job,
                step=step,
                version=step,
                final=step == self.steps,
                reference=f"checkpoint:{self.job}/{step}",
                files=files,
                metrics={"reward/mean": 0.8},
            )
            for step in (self.steps, 10)  # newest first
        ]

    def _logs(self) -> list[rest.LogLine]:
        return [
            rest.LogLine(
                id=str(n),
                created_at=self.begin + n,
                source="controller" if n % 3 else "rollout-1",
                text=f"line {n}" + self.hostile,
            )
            for n in range(1, 40)
        ]


def answering(tab: Watched, answers: Answers) -> None:
    """Let questions about outputs be answered by ``answers``."""

    def handle(route: Any) -> None:
        found = answers.answer(route.request.url)
        if found is None:
            route.fallback()
        else:
            route.fulfill(json=found)

    tab.page.route("**/v1/jobs/*/*", handle)


def _paged(entries: list[Any], query: dict[str, str]) -> tuple[list[Any], bool]:
    ids = [entry.id for entry in entries]
    start = ids.index(query["after"]) + 1 if "after" in query else 0
    limit = int(query.get("limit", 20))
    return entries[start : start + limit], len(entries) > start + limit
