"""``rlhfless simulate`` and ``rlhfless estimate``, from the command line to the files."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rlhfless.cli import simulation_files
from rlhfless.cli.main import app
from simulator.report import charts

EXAMPLES = Path(__file__).parents[3] / "examples"
QUICKSTART = str(EXAMPLES / "quickstart.yaml")
SEVEN_B = str(EXAMPLES / "simulate" / "qwen2.5-7b-grpo.yaml")
SMALL = ["--set", "training.steps=2", "--set", "training.prompts_per_step=2"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.stdout, result.stderr


def simulated(*arguments: str, job: str = QUICKSTART) -> str:
    code, out, err = call("simulate", job, *SMALL, *arguments)
    assert code == 0, out + err
    return out


def refused(*arguments: str, job: str = QUICKSTART, command: str = "simulate") -> str:
    code, out, err = call(command, job, *arguments)
    assert code == 2, out + err
    assert out == ""
    assert "Traceback" not in err
    return err


def test_a_job_is_simulated_and_written_down() -> None:
    text = simulated()
    assert "quickstart on this-machine, rlhfless" in text
    assert "2 steps of 16 samples, seed 0; all simulated" in text
    assert "core-s" in text
    assert "unknown: the cluster has no price" in text
    assert "Written to simulations/quickstart" in text
    folder = Path("simulations/quickstart")
    assert sorted(os.listdir(folder)) == [
        "cost.png", "gantt.png", "report.html", "simulation.json", "spans.csv",
    ]  # fmt: skip
    document = json.loads((folder / "simulation.json").read_text())
    assert document["simulations"][0]["steps_simulated"] == 2


def test_the_same_command_writes_the_same_bytes() -> None:
    for folder in ("a", "b"):
        simulated("--out", folder, "--compare", "static,rlhfless")
    for name in os.listdir("a"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_another_seed_is_another_simulation() -> None:
    texts = [simulated("--json", "--seed", seed) for seed in ("1", "2")]
    assert json.loads(texts[0])["simulations"][0]["seed"] == 1
    assert texts[0] != texts[1]


def test_strategies_side_by_side() -> None:
    text = simulated("--compare", "static, rlhfless-migrate,rlhfless+balanced")
    assert "speed-up, saved: against static" in text
    assert "rlhfless-migrate" in text
    assert Path("simulations/quickstart/frontier.png").exists()


def test_files_of_an_earlier_simulation_do_not_stay() -> None:
    simulated("--compare", "static,rlhfless,job")
    simulated()
    assert not Path("simulations/quickstart/frontier.png").exists()


def test_json_alone_on_stdout() -> None:
    document = json.loads(simulated("--json"))
    assert document["job"] == "quickstart"
    assert not os.path.exists("simulations")
    simulated("--json", "--out", "there")
    assert json.loads(Path("there/simulation.json").read_text()) == document


def test_a_sweep() -> None:
    text = simulated("--sweep", "rollout.max_instances=1:2", "--sweep", "objective.time_weight=0,1")
    assert "objective.time_weight" in text
    assert "2, 1" in text
    document = json.loads(Path("simulations/quickstart/simulation.json").read_text())
    assert len(document["sweep"]["points"]) == 4
    detailed = [each["strategy"] for each in document["simulations"]]
    assert detailed[0].startswith("rollout.max_instances, objective.time_weight = ")


def test_a_sweep_may_change_what_the_job_works_on() -> None:
    document = json.loads(simulated("--json", "--sweep", "rollout.max_tokens=8,64"))
    tokens = [point["tokens"] for point in document["sweep"]["points"]]
    assert tokens[0] < tokens[1]


def test_a_budget(tmp_path: Path) -> None:
    cluster = tmp_path / "priced.yaml"
    cluster.write_text(
        "pools: {cores: {accelerator: cpu-core, per_node: 2, price_usd_per_hour: 1}}\n"
        "cold_start: process\n"
    )
    text = simulated("--cluster", str(cluster), "--budget", "50")
    assert "$50.00 is enough for the 2 steps asked" in " ".join(text.split())


def test_a_budget_needs_prices() -> None:
    assert "set pools.cores.price_usd_per_hour" in refused("--budget", "50")


def test_measured_times_replace_assumed_ones(tmp_path: Path) -> None:
    slow = tmp_path / "slow.json"
    slow.write_text('{"training": {"update": [100.0, 0.0]}}')
    document = json.loads(simulated("--json", "--calibrate", str(slow)))
    assert document["simulations"][0]["simulated"][0]["train_s"] > 99


def test_without_matplotlib_everything_else_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "have_matplotlib", lambda: False)
    text = simulated()
    assert "no charts: matplotlib is not installed" in text
    assert Path("simulations/quickstart/report.html").exists()
    assert not Path("simulations/quickstart/gantt.png").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call("simulate", QUICKSTART, *SMALL, "--out", "file")
    assert code == 2
    assert "cannot write to file" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compare", "static,rlhfles"], "there is no strategy rlhfles; did you mean rlhfless?"),
        (["--compare", "static,static"], "--compare names static twice"),
        (["--cluster", "h100"], "there is no cluster file h100, nor a known cluster of that name"),
        (["--cluster", "no.yaml"], "there is no cluster file no.yaml"),
        (["--workload", "no.yaml"], "no.yaml"),
        (["--replay", "no-run"], "no-run is no folder of a run"),
        (["--calibrate", "no.json"], "no.json"),
        (["--sweep", "rollout.max_instances"], "write field=first:last:step"),
        (["--sweep", "rollout.max_instance=1:2"], "did you mean max_instances?"),
        (["--sweep", "seed=1:2", "--budget", "3"], "ask one"),
        (["--budget", "-3"], "no amount of money"),
        (["--steps", "0"], "--steps 0: write a number of steps, auto or all"),
        (["--steps", "many"], "--steps many"),
        (["--set", "rollout.max_instance=2"], "did you mean max_instances?"),
    ],
)
def test_wrong_commands_name_what_is_wrong(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_a_cluster_without_the_accelerators_asked_for() -> None:
    text = refused("--cluster", "this-machine", job=SEVEN_B)
    assert "rollout.accelerator: cluster this-machine has no cuda" in text


def test_a_model_that_does_not_fit() -> None:
    text = refused("--set", "model.path=Llama-2-70B", "--cluster", "l40s-16", job=SEVEN_B)
    assert "placements.rollout.tensor_parallel" in text


def test_estimate() -> None:
    code, out, _ = call("estimate", QUICKSTART, *SMALL)
    assert code == 0
    assert "quickstart on this-machine" in out
    assert "On the default cluster this-machine" in out
    assert os.listdir() == []


def test_estimate_for_gpus_and_as_json() -> None:
    small = [*SMALL, "--set", "training.minibatches=2", "--set", "rollout.max_tokens=64"]
    code, out, _ = call("estimate", SEVEN_B, *small, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["cluster"] == "h100-8"
    assert document["simulations"][0]["usd"]["as_run"] > 0


def test_estimate_names_what_is_wrong() -> None:
    text = refused("--cluster", "nowhere", command="estimate")
    assert "known: h100-160, h100-8, l40s-16, mixed-spot, this-machine" in text


def test_estimate_loads_nothing_slow() -> None:
    heavy = ("torch", "transformers", "matplotlib", "redis", "httpx", "fastapi", "peft")
    code = (
        "import sys, rlhfless.cli.simulate as s\n"
        f"s.estimate_job({QUICKSTART!r}, ['training.steps=1'], None, None, True)\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("terminal", "waited_s", "seen"), [(True, 0.5, False), (True, 2.0, True), (False, 2.0, False)]
)
def test_the_bar_is_shown_only_when_it_takes_long(
    terminal: bool, waited_s: float, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(simulation_files.time, "monotonic", lambda: now[0])
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80)
    with simulation_files.Bar(console) as bar:
        now[0] += waited_s
        bar.show("simulating static, steps", 3, 9)
    assert ("simulating static, steps" in shown.getvalue()) == seen
