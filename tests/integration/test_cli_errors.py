"""Errors as a person meets them: an exit code, what is wrong and what to do, and no stack trace."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.runs import Ended, Workplace

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Mistake:
    """What somebody does wrong and what they are told. ``{place}`` is the job's folder."""

    name: str
    says: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Workplace], None] = lambda _: None
    code: int = 2


def long_prompts(place: Workplace) -> None:
    place.write_rows("train.jsonl", [{"prompt": "a" * 300, "goal": "a"}])


def torn_model(place: Workplace) -> None:
    folder = place.folder / "torn"
    shutil.copytree(place.model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    place.change_job(model={"path": "./torn"})


def no_json(place: Workplace) -> None:
    folder = place.folder / "broken"
    shutil.copytree(place.model, folder)
    (folder / "config.json").write_text("{")
    place.change_job(model={"path": "./broken"})


def reward(body: str) -> Callable[[Workplace], None]:
    def write(place: Workplace) -> None:
        code = f"def letters(prompts, completions, goal, **columns):\n    {body}\n"
        (place.folder / "rewards.py").write_text(code)

    return write


MISTAKES = [
    Mistake(
        "unknown field",
        ("error: training.leraning_rate: unknown field; did you mean learning_rate?",),
        ("--set", "training.leraning_rate=1"),
    ),
    Mistake(
        "value out of range",
        ("error: training.steps: input should be greater than 0 (got 0)",),
        ("--set", "training.steps=0"),
    ),
    Mistake(
        "no job file",
        ("error: there is no job file job.yaml", "did you mean ./jobs.yaml?"),
        prepare=lambda p: p.job_file.rename(p.folder / "jobs.yaml"),
    ),
    Mistake(
        "missing model",
        ("error: there is no model folder {place}/modle", "did you mean {place}/model?"),
        ("--set", "model.path=./modle"),
        lambda p: (p.folder / "model").mkdir(),
    ),
    Mistake("torn model", ("error: cannot load the model {place}/torn:",), prepare=torn_model),
    Mistake("broken config", ("{place}/broken/config.json is not JSON",), prepare=no_json),
    Mistake(
        "missing dataset",
        (
            "error: there is no dataset {place}/trian.jsonl",
            "did you mean {place}/train.jsonl?",
        ),
        ("--set", "dataset.path=trian.jsonl"),
    ),
    Mistake(
        "wrong column",
        ("error: there is no column 'prmpt' among prompt, goal; did you mean prompt?",),
        ("--set", "dataset.columns.prompt=prmpt"),
    ),
    Mistake(
        "prompt too long",
        ("train.jsonl line 1: a prompt of 300 tokens", "context of 256", "hint:  lower rollout"),
        prepare=long_prompts,
    ),
    Mistake(
        "no such reward",
        ("there is no function 'leters'", "did you mean 'letters'?"),
        ("--set", "rewards.0.python=rewards.py:leters"),
    ),
    Mistake(
        "reward of another length",
        ("error: reward 'letters' returned 1 scores for ",),
        prepare=reward("return [1.0]"),
    ),
    Mistake(
        "reward of nan",
        ("error: reward 'letters' returned nan on sample 'eval-0/",),
        prepare=reward("return [float('nan') for _ in completions]"),
    ),
    Mistake(
        "reward that raises",
        ("error: reward 'letters' raised KeyError: 'x' ({place}/rewards.py:2) on sample 'eval-0/",),
        prepare=reward("return [{}['x'] for c in completions]"),
    ),
    Mistake(
        "reward that hangs",
        (
            "error: reward 'letters' took longer than 1 s (at {place}/rewards.py:2 in",
            "on sample 'eval-0/",
            "hint:  raise its timeout_s",
        ),
        ("--set", "rewards.0.timeout_s=1"),
        reward("return [__import__('time').sleep(60) for c in completions]"),
    ),
    Mistake(
        "reward that crashes",
        ("error: reward 'letters' ended its process with exit code 3 on sample",),
        prepare=reward("return [__import__('os')._exit(3) for c in completions]"),
    ),
    Mistake(
        "nothing to resume",
        ("error: there is no run to resume in {place}/run", "hint:  run without --resume"),
        ("--resume",),
    ),
]


def assert_told(ended: Ended, code: int, *says: str) -> None:
    assert ended.code == code, ended.explained()
    for words in says:
        assert words in ended.err, ended.explained()
    assert "Traceback" not in ended.err
    assert 'File "' not in ended.err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name.replace(" ", "-"))
def test_a_mistake_is_told_in_words(place: Workplace, mistake: Mistake) -> None:
    mistake.prepare(place)
    ended = place.start_job("run", *mistake.arguments).ended()
    says = (words.format(place=place.folder) for words in mistake.says)
    assert_told(ended, mistake.code, *says)
    place.assert_nothing_left()


def test_a_run_that_never_began_leaves_its_folder_to_the_next(place: Workplace) -> None:
    steps = ["--set", "training.steps=1"]
    wrong = place.start_job("run", "--set", "dataset.path=trian.jsonl", *steps).ended()
    assert_told(wrong, 2, "trian.jsonl")
    right = place.start_job("run", *steps).ended()
    assert right.code == 0, right.explained()
    assert place.result().summary["status"] == "succeeded"


def test_a_reward_mended_after_steps_lets_the_run_go_on(place: Workplace) -> None:
    good = (place.folder / "rewards.py").read_text()
    bad = "    if prompts[0] not in FIRST: raise ValueError('no such letter')\n    return"
    bad = good.replace("    return", bad)
    place.change_job(evaluation=None, dataset={"shuffle": False}, training={"steps": 2})
    (place.folder / "rewards.py").write_text(f"FIRST = ('a0=', 'b1=', 'c2=', 'd3=')\n{bad}")
    ended = place.start_job().ended()
    assert_told(ended, 2, "error: reward 'letters' raised ValueError: no such letter")
    assert "continue with: rlhfless run job.yaml --out run --resume" in ended.out
    assert (place.result().summary["status"], place.result().summary["steps"]) == ("failed", 1)
    (place.folder / "rewards.py").write_text(good)
    ended = place.start_job("run", "--resume").ended()
    assert ended.code == 0, ended.explained()
    assert [m["step"] for m in place.result().metrics] == [1, 2]


def test_verbose_shows_where_it_happened(place: Workplace) -> None:
    reward("return [{}['x'] for c in completions]")(place)
    ended = place.start_job("run", "--verbose").ended()
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert f'File "{place.folder}/rewards.py", line 2, in letters' in ended.err
    assert "error: reward 'letters' raised KeyError: 'x'" in ended.err


def test_a_port_in_use(place: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = place.start_job("run", "--metrics-port", str(port)).ended()
    assert_told(
        ended, 2, f"error: cannot serve metrics on port {port}", "choose another --metrics-port"
    )
    assert not (place.folder / "run").exists()


def test_a_redis_that_is_not_there(place: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"redis://:secret@127.0.0.1:{gone.getsockname()[1]}/0"
    ended = place.start("run", "job.yaml", "--out", "run", REDIS_URL=url).ended()
    assert_told(ended, 3, "error: the Redis at redis://127.0.0.1", "unset REDIS_URL")
    assert "secret" not in ended.explained()


def test_a_reward_that_kills_its_function_each_time(place: Workplace) -> None:
    """The function's process is the grandparent of the user's."""
    body = """
    import os, signal, time
    status = open(f"/proc/{os.getppid()}/status").read()
    os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
    time.sleep(60)
    """
    reward(body)(place)
    ended = place.start_job().ended()
    assert_told(ended, 5, "error: the reward function failed 3 times in a row:", "SIGKILL")
    place.assert_nothing_left()


def test_a_run_folder_that_cannot_be_used(place: Workplace) -> None:
    out = place.folder / "run"
    (out / ".lock").mkdir(parents=True)
    assert_told(place.start_job().ended(), 2, f"error: cannot write to {out}: Is a directory")
    (out / ".lock").rmdir()
    (out / "logs").write_text("not a folder")
    assert_told(place.start_job().ended(), 2, f"error: cannot write to {out}/logs: File exists")
    (out / "logs").unlink()
    (out / "store").write_text("not a folder")
    ended = place.start_job("run", "--set", "training.steps=1").ended()
    assert_told(ended, 2, f"error: cannot read {out}/store/", ": Not a directory")
    place.assert_nothing_left()


@pytest.mark.parametrize("place_of_out", ["a file", "nowhere"])
def test_an_out_that_cannot_be_a_folder(place: Workplace, place_of_out: str) -> None:
    out: Path = place.job_file if place_of_out == "a file" else Path("/proc/nowhere/run")
    assert_told(place.start_job(str(out)).ended(), 2, f"error: cannot write to {out}")


def test_resume_with_other_settings(place: Workplace) -> None:
    """What decides the result must not change under way; what only decides the pace may."""
    done = place.start_job("run", "--set", "training.steps=1").ended()
    assert done.code == 0, done.explained()
    ended = place.start_job("run", "--resume", "--set", "training.learning_rate=1").ended()
    assert_told(
        ended, 2, "was started with other settings: training.learning_rate", "undo the changes"
    )
    place.write_rows("train.jsonl", [{"prompt": "z=", "goal": "z"}])
    ended = place.start_job("run", "--resume").ended()
    assert_told(ended, 2, "the dataset has changed since the job began")
    assert place.result().summary["status"] == "succeeded"
