"""The commands that ask a service, against one that is scripted."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

import rlhfless
from rlhfless.cli.main import app
from rlhfless.errors import ConflictError, NotFoundError, UserError
from tests.support.clients import Cut, document, event, job, page, streamed

FIRST, SECOND, THIRD = (job(number)["id"] for number in (1, 2, 3))
SPENT = {"held_s": 20.0, "busy_s": 15.0, "idle_s": 3.0, "cold_s": 2.0, "usd": 0.5}
METRICS = {
    "step": 1.0,
    "reward/mean": 0.25,
    "response_length/mean": 12.5,
    "response_length/max": 40.0,
    "rollout/actors": 2.0,
    "functions/idle_fraction": 0.1,
    "functions/held_s": 20.0,
    "time/step_s": 1.5,
}
Answer = Callable[[httpx.Request], httpx.Response]


class Pretend:
    """A service with three jobs: two named ``twin``, one named ``other``. ``answers``: by the end
    of a path, what is answered instead of 404."""

    def __init__(self) -> None:
        progress = {"steps_done": 1, "total_steps": 3, "phase": "rollout", "spent": SPENT}
        self.jobs = {
            THIRD: job(3, "succeeded", name="twin", progress=progress | {"reward": 0.5}),
            SECOND: job(2, "running", name="other", progress=progress),
            FIRST: job(1, "failed", name="twin"),
        }
        self.answers: dict[str, Answer] = {}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        parts = request.url.path.split("/")[2:]
        if (answer := self.answers.get(parts[-1])) is not None:
            return answer(request)
        if parts == ["jobs"] and request.method == "GET":
            return page(*self.jobs.values())
        if len(parts) == 2 and parts[1] in self.jobs:
            return document(**self.jobs[parts[1]])
        return httpx.Response(404, json=NotFoundError(f"no {request.url.path}").to_problem())

    def entries(self, name: str, *entries: dict[str, Any]) -> None:
        self.answers[name] = lambda _: page(*entries)

    def tells(self, *events: dict[str, Any]) -> None:
        """The events of whatever job is watched."""

        def answer(request: httpx.Request) -> httpx.Response:
            if request.headers["accept"] != "text/event-stream":
                return page()
            return httpx.Response(200, stream=Cut(streamed(*events), broken=False))

        self.answers["events"] = answer


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretend:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHFLESS_URL", "http://service")
    monkeypatch.setenv("RLHFLESS_API_KEY", "rlk_test")
    monkeypatch.setenv("COLUMNS", "200")
    pretend = Pretend()
    transport = httpx.MockTransport(pretend)
    waiting = functools.partial(rlhfless.Client, transport=transport, sleep=lambda _: None)
    awaiting = functools.partial(rlhfless.AsyncClient, transport=transport)
    monkeypatch.setattr("rlhfless.cli.service.Client", waiting)
    monkeypatch.setattr("rlhfless.client.Client", waiting)
    monkeypatch.setattr("rlhfless.cli.watch.AsyncClient", awaiting)
    return pretend


def rl(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_jobs_are_listed(service: Pretend) -> None:
    shown = rl("list").stdout.splitlines()
    assert [line.split()[:4] for line in shown[1:]] == [
        [THIRD, "twin", "succeeded", "1/3"],
        [SECOND, "other", "running", "1/3"],
        [FIRST, "twin", "failed", "0/?"],
    ]
    assert [each["id"] for each in lines(rl("list", "--json", "--limit", "2"))] == [THIRD, SECOND]
    only = lines(rl("list", "--json", "--state", "failed,running"))
    assert [each["id"] for each in only] == [SECOND, FIRST]
    assert "no job is paused" in rl("list", "--state", "paused").stderr
    assert "states: queued" in rl("list", "--state", "gone", code=2).stderr


def test_a_job_is_meant_by_id_beginning_or_name(service: Pretend) -> None:
    for said, meant in ((SECOND, SECOND), ("twin", THIRD), ("other", SECOND)):
        assert lines(rl("show", said, "--json"))[0]["id"] == meant
    service.jobs["job-ffff" + "0" * 24] = job(4, id="job-ffff" + "0" * 24)
    for beginning in ("job-f", "ffff"):
        assert "job-ffff" in rl("show", beginning).stdout
    assert "several jobs" in rl("show", "job-0", code=2).stderr
    assert "rlhfless list" in rl("show", "nothing", code=2).stderr


def test_a_job_is_shown(service: Pretend) -> None:
    service.jobs[FIRST] |= {
        "reason": "out of luck",
        "error": UserError("bad reward", hint="look").to_problem(),
        "states": {"running": {"at": 2.0}, "queued": {"at": 1.0}},
        "metadata": {"team": "a[b]"},
    }
    shown = rl("show", FIRST).stdout
    for text in ("failed: out of luck", "bad reward", "look", "team=a[b]"):
        assert text in shown
    assert shown.index("queued") < shown.index("running")
    assert "20 function-seconds (0.5000 USD)" in rl("show", SECOND).stdout


@pytest.mark.parametrize("how", ["cancel", "pause", "resume"])
def test_a_job_is_steered(service: Pretend, how: str) -> None:
    service.answers[how] = lambda _: document(**job(2, "cancelled"))
    assert rl(how, "other").stdout == f"{SECOND} is cancelled\n"
    assert service.requests[-1].url.path == f"/v1/jobs/{SECOND}/{how}"
    assert lines(rl(how, "other", "--json"))[0]["state"] == "cancelled"
    late = ConflictError("it has ended")
    service.answers[how] = lambda _: httpx.Response(409, json=late.to_problem())
    assert "it has ended" in rl(how, "other", code=2).stderr


def test_a_job_is_deleted_by_whoever_is_sure(service: Pretend) -> None:
    def deleted() -> list[str]:
        return [one.url.path for one in service.requests if one.method == "DELETE"]

    asked = CliRunner().invoke(app, ["delete", THIRD], input="n\n")
    assert asked.exit_code == 1
    assert f"delete {THIRD} (twin, succeeded, 1/3 steps)" in asked.stderr
    assert deleted() == []
    assert CliRunner().invoke(app, ["delete", THIRD], input="y\n").exit_code == 0
    assert rl("delete", "--yes", THIRD).stdout == f"{THIRD} is deleted\n"
    assert lines(rl("delete", "-y", THIRD, "--json"))[0]["id"] == THIRD
    assert deleted() == [f"/v1/jobs/{THIRD}"] * 3


def test_a_job_resumes_with_more_money(service: Pretend) -> None:
    service.answers["resume"] = lambda _: document(**job(2))
    rl("resume", "other", "--max-usd", "7")
    assert json.loads(service.requests[-1].content) == {"budget": {"max_usd": 7}}
    rl("resume", "other")
    assert service.requests[-1].content == b""


def test_logs(service: Pretend) -> None:
    line = {"id": "1-0", "created_at": 1.0, "source": "reward-1", "text": "[bold] hello"}
    service.entries("logs", line)
    assert rl("logs", "other").stdout[8:] == " reward-1 | [bold] hello\n"
    assert lines(rl("logs", "other", "--json"))[0]["source"] == "reward-1"
    service.jobs[SECOND]["state"] = "succeeded"
    assert rl("logs", "-f", "other").stdout[9:].startswith("reward-1")


def test_usage_and_metrics(service: Pretend) -> None:
    step = {"id": "1", "step": 1, "functions": {"rollout": SPENT}}
    service.answers["usage"] = lambda _: document(
        total=SPENT, functions={"rollout": SPENT}, wall_s=9.0, data=[step], has_more=False
    )
    shown = rl("usage", "other", "--steps").stdout
    assert "20 function-seconds (0.5000 USD)" in shown
    assert shown.count("rollout") == 2
    assert lines(rl("usage", "other", "--json"))[0]["total"]["busy_s"] == 15
    service.entries("metrics", {"id": "1", "step": 1, "metrics": METRICS})
    assert "0.250" in rl("metrics", "other").stdout
    chosen = ["--name", "time/step_s", "--name", "none/such"]
    assert rl("metrics", "other", *chosen).stdout.split()[-3:] == ["1", "1.5", "-"]
    assert lines(rl("metrics", "other", "--json", *chosen))[0]["metrics"] == {"time/step_s": 1.5}


def test_rollouts(service: Pretend) -> None:
    sample = {
        "id": "0/1/2",
        "step": 2,
        "prompt": [{"role": "user", "content": "[red]?"}],
        "completion": "[/red]!",
        "reward": 0.5,
        "rewards": {"right": 1.0, "short": None},
        "num_tokens": 3,
        "finish_reason": "stop",
        "version": 1,
        "tokens": [{"text": "!\n", "logprob": -0.25}, {"text": "", "logprob": None}],
    }
    service.entries("rollouts", sample, sample)
    shown = rl("rollouts", "other", "--step", "2", "--limit", "1", "--tokens").stdout
    for text in ("user: [red]?", "[/red]!", "right 1, short -", r"'!\n' -0.25"):
        assert shown.count(text) == 1
    params = service.requests[-1].url.params
    assert (params["step"], params["sort"], params["tokens"]) == ("2", "-reward", "true")
    assert len(lines(rl("rollouts", "other", "--sort", "reward", "--json"))) == 2
    assert "tokens" not in service.requests[-1].url.params


def test_weights_are_downloaded(service: Pretend, tmp_path: Path) -> None:
    file = {"name": "a", "bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    checkpoint = {
        "id": "3", "created_at": 1.0, "job": THIRD, "step": 3, "version": 3, "final": True,
        "reference": "", "files": [file],
    }  # fmt: skip
    service.entries("checkpoints", checkpoint)
    service.answers["a"] = lambda _: httpx.Response(200, content=b"x")
    shown = rl("download", "twin", "--out", "model").stdout
    assert "from_pretrained('model')" in shown
    assert (tmp_path / "model" / "a").read_bytes() == b"x"
    told = lines(rl("download", "twin", "--out", "model", "--json"))
    assert told == [{"job": THIRD, "folder": str(tmp_path / "model")}]


def test_a_job_is_submitted(service: Pretend, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "model: {path: org/model}\ndataset: {path: org/data}\nrewards: [{http: 'https://x'}]\n"
    )

    def take(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return page(*service.jobs.values())
        return document(**job(9, "queued", spec=json.loads(request.content)))

    service.answers["jobs"] = take
    made = rl("submit", "job.yaml", "--set", "seed=7")
    assert made.stdout == f"{job(9)['id']}\n"
    assert f"rlhfless watch {job(9)['id']}" in made.stderr
    document_ = lines(rl("submit", "job.yaml", "--json"))[0]
    assert document_["spec"]["model"]["path"] == "org/model"
    assert "there is no job file" in rl("submit", "none.yaml", code=2).stderr


def watched(service: Pretend, state: str, **values: Any) -> None:
    """The running job gets on and comes to this state while it is watched."""
    service.answers["usage"] = lambda _: document(
        total=SPENT, functions={"rollout": SPENT}, wall_s=9.0, data=[], has_more=False
    )
    service.jobs[SECOND] |= {"state": state, **values}
    service.tells(
        event(1, "state", state="running", reason=None),
        event(2, "evaluated", step=0, accuracy=0.25),
        event(3, "step", step=1, metrics=METRICS),
        event(4, "evaluated", step=1, accuracy=0.75),
        event(5, "notice"),
        event(6, "something", of="a later release"),
        event(7, "state", state=state, reason=None),
    )


def test_a_job_is_watched_to_its_end(service: Pretend) -> None:
    watched(service, "succeeded")
    shown = rl("watch", "other").stdout
    for text in (
        "held-out accuracy before training: 25.0%",
        "step 1/3  reward 0.250  length 12.5 (max 40)",
        "event 5",
        "Learned: held-out accuracy 25.0% -> 75.0%",
        "20 function-seconds (0.5000 USD)",
        f"rlhfless download {SECOND} --out other",
    ):
        assert shown.count(text) == 1, text
    told = lines(rl("watch", "other", "--json"))
    assert [each["id"] for each in told] == [f"{n}-0" for n in range(1, 8)]


@pytest.mark.parametrize(
    ("state", "values", "code", "said"),
    [
        ("paused", {"reason": "budget"}, 6, f"rlhfless resume {SECOND}"),
        ("cancelled", {}, 7, "is cancelled"),
        ("failed", {"error": UserError("bad reward").to_problem()}, 2, "error: bad reward"),
        ("failed", {}, 5, "is failed"),
    ],
)
def test_how_a_job_ended_is_the_exit_code(
    service: Pretend, state: str, values: dict[str, Any], code: int, said: str
) -> None:
    watched(service, state, **values)
    assert said in rl("watch", "other", code=code).output
    rl("watch", "other", "--json", code=code)


def test_a_pause_of_long_ago_does_not_end_the_watching(service: Pretend) -> None:
    watched(service, "succeeded")
    service.tells(event(1, "state", state="paused"), event(2, "state", state="succeeded"))
    assert len(lines(rl("watch", "other", "--json"))) == 2


def test_who_stops_watching_is_told_that_the_job_goes_on(service: Pretend) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    service.answers["events"] = interrupt
    said = rl("watch", "other", code=130).stderr
    assert "the job goes on" in said
    assert f"rlhfless watch {SECOND}" in said


def test_a_shell_completes_jobs(service: Pretend) -> None:
    from rlhfless.cli.options import complete_job

    assert complete_job("") == [
        ("twin", "succeeded, the newest of this name"),
        ("other", "running, the newest of this name"),
    ]
    assert [word for word, _ in complete_job("job-")] == [THIRD, SECOND, FIRST]
    assert complete_job("x") == []
    service.answers["jobs"] = lambda _: httpx.Response(503)
    assert complete_job("") == []


def test_nobody_answers(service: Pretend) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    service.answers["jobs"] = refuse
    said = rl("list", code=4).stderr
    assert "cannot reach the service at http://service" in said
    assert "rlhfless serve" in said
