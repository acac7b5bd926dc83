"""The page's form for new jobs in a real browser, over a real service that drives none."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhfless import rest
from tests.support.browser import Watched, chromium
from tests.support.served import Served, served

pytestmark = pytest.mark.slow

JOB = """\
# path: not-this.jsonl
name: mine
model: {path: "library:quickstart/model"}
dataset:
  path: data/train.jsonl  # 1,000 rows
evaluation: {dataset: {path: 'data/train.jsonl'}}
rewards:
  - python: code/rewards.py:exact_match
"""
REWARD = "def exact_match(prompts, completions, **columns):\n    return [1.0] * len(prompts)\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    quickstart = folder / "library/quickstart"
    (quickstart / "model").mkdir(parents=True)
    (quickstart / "data").mkdir()
    (quickstart / "model/config.json").write_text("{}")
    (quickstart / "rewards.py").write_text(REWARD)
    for name in ("train", "eval"):
        (quickstart / f"data/{name}.jsonl").write_text('{"prompt": "a"}\n')
    with served(folder, library=str(folder / "library")) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def tab(browser: Any, service: Served) -> Iterator[Watched]:
    key = service.do(lambda parts: parts.keys.create("acme", "page", "submit"))[1]
    opened = Watched(browser, service.url)
    opened.sign_in(key)
    yield opened
    opened.close()


def call(tab: Watched, module: str, code: str, *values: Any) -> Any:
    """What ``code`` makes of the page's ``module`` and values."""
    script = f"async values => {{ const m = await import('/page/{module}'); {code} }}"
    return tab.page.evaluate(script, list(values))


def test_the_quick_start_is_filled_in_and_submitted_once(tab: Watched, service: Served) -> None:
    page = tab.page
    keys: list[str] = []
    tab.open("#/submit")

    def twice(route: Any) -> None:
        """The first answer is lost on the way."""
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            route.continue_()
            return
        assert route.fetch().status == 201
        route.abort()

    page.route("**/v1/jobs", twice)
    page.get_by_role("button", name="Quick start").click()
    assert "library:quickstart/model" in page.get_by_label("Job", exact=True).input_value()
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("alert").get_by_text("The service cannot be reached").wait_for()
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="quickstart").wait_for()
    assert keys[0] == keys[1]
    found = service.do(lambda parts: parts.registry.listed("acme"))
    assert [job.spec["name"] for job in found.data] == ["quickstart"]
    tab.open("#/submit")
    assert page.get_by_label("Job", exact=True).input_value() == ""
    tab.errors = [error for error in tab.errors if "net::ERR" not in error]


def test_files_are_attached_and_their_names_replaced(
    tab: Watched, service: Served, tmp_path: Path
) -> None:
    page = tab.page
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "job.yaml").write_text(JOB)
    tab.open("#/submit")
    page.get_by_label("Choose a job file").set_input_files(tmp_path / "job.yaml")
    page.get_by_role("button", name="Submit job").click()
    missing = page.get_by_role("alert").get_by_text("data/train.jsonl, code/rewards.py")
    missing.wait_for()
    for value in ("data/train.jsonl", "code/rewards.py"):
        page.get_by_label(f"File for {value}").set_input_files(tmp_path / Path(value).name)
        row = page.get_by_role("listitem").filter(has_text=value)
        row.get_by_text("uploaded").wait_for()
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="mine").wait_for()
    id_ = page.url.rpartition("/")[2]
    spec = service.do(lambda parts: parts.registry.get("acme", id_)).spec
    data = spec["dataset"]["path"]
    assert data.startswith("file-")
    assert spec["evaluation"]["dataset"]["path"] == data
    assert spec["rewards"][0]["python"].startswith("file-")
    assert spec["rewards"][0]["python"].endswith(":exact_match")
    stored = service.do(lambda parts: parts.files.get("acme", data))
    assert (stored.filename, stored.purpose) == ("train.jsonl", "dataset")


def test_what_is_wrong_with_a_job_is_told(tab: Watched) -> None:
    page = tab.page
    tab.open("#/submit")
    for text, told in [
        ("modle: {path: org/name}", "did you mean model?"),
        ("a: [", "the body is not YAML"),
        ("{}", "model: required"),
        (
            "model: {path: 'library:no/such'}\ndataset: {path: org/d}\n"
            "rewards: [{http: 'https://example.com'}]",
            "the library has no 'no/such'",
        ),
    ]:
        page.get_by_label("Job", exact=True).fill(text)
        page.get_by_role("button", name="Submit job").click()
        page.get_by_role("alert").get_by_text(told).wait_for()


def test_an_estimate_shows_time_against_cost(tab: Watched) -> None:
    page = tab.page
    ways = [
        rest.EstimatePoint(settings={"rollout.max_instances": n}, wall_s=80 / n, held_s=90 + 9 * n)
        for n in (4, 2, 1)
    ]
    spent = rest.Spent(held_s=50, busy_s=30, idle_s=15, cold_s=5)
    estimate = rest.Estimate(
        cluster="this machine",
        total_steps=30,
        step_s=2.0,
        wall_s=62.0,
        held_s=150.0,
        functions={"rollout": spent, "training": spent},
        frontier=ways,
        assumptions=["responses have 20 tokens on average"],
    )
    asked: list[str] = []

    def answer(route: Any) -> None:
        asked.append(route.request.headers["content-type"])
        route.fulfill(json=estimate.model_dump(mode="json"))

    page.route("**/v1/estimates", answer)
    tab.open("#/submit")
    page.get_by_role("button", name="Quick start").click()
    page.get_by_role("button", name="Estimate time and cost").click()
    chart = page.get_by_role("slider", name="Time against cost")
    chart.wait_for()
    assert chart.get_attribute("aria-valuetext").startswith("as written: 62 s")
    chart.focus()
    page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuetext").startswith("rollout.max_instances: 4: 20 s")
    rows = page.get_by_role("table", name="Ways to run it").get_by_role("row")
    assert rows.count() == 1 + len(ways)
    page.get_by_label("Job", exact=True).fill('{"name": "other"}')
    chart.wait_for(state="hidden")  # it was of another job
    page.get_by_role("button", name="Estimate time and cost").click()
    chart.wait_for()
    assert asked == ["application/yaml", "application/json"]


def test_a_job_is_not_lost_with_the_connection(tab: Watched) -> None:
    page = tab.page
    tab.open("#/submit")
    page.get_by_role("button", name="Quick start").click()
    tab.context.set_offline(True)
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("alert").get_by_text("The service cannot be reached").wait_for()
    page.get_by_text("Connection lost").wait_for()
    tab.context.set_offline(False)
    page.get_by_text("Connection lost").wait_for(state="hidden")
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="quickstart").wait_for()
    assert all("net::ERR" in each for each in tab.refused)


def test_a_spec_can_be_used_again(tab: Watched, service: Served) -> None:
    page = tab.page
    tab.open("#/submit")
    page.get_by_role("button", name="Quick start").click()
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="quickstart").wait_for()
    page.get_by_role("link", name="Spec").click()
    page.get_by_role("button", name="Use for a new job").click()
    page.get_by_role("heading", name="Submit a job").wait_for()
    written = json.loads(page.get_by_label("Job", exact=True).input_value())
    assert written["training"]["steps"] == 30
    page.get_by_role("button", name="Submit job").click()
    page.get_by_role("heading", name="quickstart").wait_for()
    assert len(service.do(lambda parts: parts.registry.listed("acme")).data) >= 2


def test_files_are_found_in_yaml_and_json(tab: Watched) -> None:
    def named(text: str) -> list[list[Any]]:
        code = "return m.namedFiles(values[0]).map(f => [f.value, f.purpose, f.perhapsHub]);"
        return call(tab, "submit/references.js", code, text)

    told = [["data/train.jsonl", "dataset", False], ["code/rewards.py", "reward", False]]
    assert named(JOB) == told
    as_json = {
        "model": {"path": "./my model"},
        "dataset": {"path": "org/data", "columns": {"prompt": "path"}},
        "rewards": [
            {"python": "r.py:f"},
            {"model": "judge"},
            {"http": "https://x.example", "python": None},
        ],
    }
    assert named(json.dumps(as_json)) == [
        ["./my model", "model", False],
        ["org/data", "dataset", True],
        ["r.py", "reward", False],
        ["judge", "model", False],
    ]
    references = ["file-" + "0" * 24, "library:a/b", "checkpoint:job-1/2", "https://x.example/d"]
    assert named("\n".join(f"path: {each}" for each in references)) == []
    assert named("python: package.module:function\nmodel: ~") == []


def test_only_the_files_are_replaced(tab: Watched) -> None:
    code = "return m.withIds(values[0], new Map(values[1]));"
    ids = [["data/train.jsonl", "file-1"], ["code/rewards.py", "file-22"]]
    replaced = call(tab, "submit/references.js", code, JOB, ids)
    expected = JOB.replace("data/train.jsonl", "file-1").replace("code/rewards.py", "file-22")
    assert replaced == expected


def test_a_folder_becomes_a_tar(tab: Watched) -> None:
    names = ["config.json", "deep/" + "d" * 90 + "/" + "n" * 95, "umlaut-ä.txt", ".hidden/x"]
    code = """
        const files = values.map(name => {
          const file = new File([name.repeat(9)], name);
          Object.defineProperty(file, "webkitRelativePath", { value: `model/${name}` });
          return file;
        });
        return [...new Uint8Array(await m.tarOf(files).arrayBuffer())];"""
    packed = bytes(call(tab, "submit/tar.js", code, *names))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == names[:3]
        for name in names[:3]:
            member = tar.extractfile(name)
            assert member is not None
            assert member.read() == (name * 9).encode()


def test_numbers_are_told_as_people_read_them(tab: Watched) -> None:
    def told(name: str, value: Any) -> str:
        return call(tab, "format.js", f"return m.{name}(values[0]);", value)

    numbers = [
        told("number", each) for each in (0, 0.00001, 0.012345, 0.99999, 1.2345, 123.4, 12345)
    ]
    assert numbers == ["0", "1.00e-5", "0.0123", "1", "1.23", "123", "12,345"]
    assert told("number", None) == told("usd", None) == told("duration", None) == "unknown"
    assert [told("usd", each) for each in (0, 0.0123, 0.5, 12.345)] == [
        "$0", "$0.012", "$0.50", "$12.35",
    ]  # fmt: skip
    durations = [1.234, 119.9, 150, 600, 7199.6, 8100, 200_000, 345_600]
    assert [told("duration", each).replace("\u00a0", " ") for each in durations] == [
        "1.23 s", "120 s", "2 min 30 s", "10 min", "2 h", "2 h 15 min", "2 d 8 h", "4 d",
    ]  # fmt: skip
    assert told("inColumn", 1.5) == "1.50\u00a0s"
    assert told("bytes", 1_741_376) == "1.74 MB"


def test_labels_of_an_axis_differ(tab: Watched) -> None:
    def told(*ends: float) -> list[str]:
        return call(tab, "charts/axis.js", "return m.labels(m.ticks(...values));", *ends)

    assert told(0, 1) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert told(33.698, 33.703) == ["33.698", "33.699", "33.700", "33.701", "33.702", "33.703"]
    assert told(0, 3e-5)[:2] == ["0", "5.00e-6"]
    assert told(0, 40_000)[-1] == "40K"
    assert told(7, 7) == ["7.0"]


def test_instances_that_follow_each_other_share_a_lane(tab: Watched) -> None:
    def span(instance: str, function: str, phase: str, start: float, end: float | None) -> Any:
        times = {"start_at": start, "end_at": end}
        return {"instance": instance, "function": function, "phase": phase, **times}

    spans = [
        span("t", "training", "busy", 0, 5),
        span("r1", "rollout", "cold", 0, 1),
        span("r1", "rollout", "busy", 1, 2),
        span("r1", "rollout", "busy", 2, 3),
        span("r2", "rollout", "busy", 2.5, 4),
        span("r3", "rollout", "busy", 3, None),
    ]
    code = """return m.lanes(values[0], 9).map(lane =>
        [lane.function, lane.bars.map(bar => [bar.instance, bar.phase, bar.start_at, bar.end])]);"""
    assert call(tab, "charts/lanes.js", code, spans) == [
        ["rollout", [["r1", "cold", 0, 1], ["r1", "busy", 1, 3], ["r3", "busy", 3, 9]]],
        ["rollout", [["r2", "busy", 2.5, 4]]],
        ["training", [["t", "busy", 0, 5]]],
    ]
