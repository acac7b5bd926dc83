"""Real runs of a very small job through the command line, and what they must leave.

A ``Workplace`` is a folder with a job, its data and its reward. Its processes get a mark in their
environment and a TMPDIR of their own, so a test can tell what a run left behind.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from redis import Redis

from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, read_manifest, versions
from tests.support.processes import marked

ROOT = Path(__file__).parents[2]
STEPS = 3
PROMPTS_PER_STEP = 4
GROUP_SIZE = 2
WAIT_S = 150.0
"""For what comes to be at all: the machine may be busy with other things."""
GONE_WITHIN_S = 15.0

REWARD = """
def letters(prompts, completions, goal, **columns):
    return [(c.count(g) + 0.1 * len(set(c))) / (1 + len(c)) for c, g in zip(completions, goal)]
"""
T = TypeVar("T")


def job(model: Path) -> dict[str, Any]:
    """Three steps, all four functions, two rollout instances, an evaluation before and after."""
    return {
        "name": "tiny",
        "model": {"path": str(model)},
        "dataset": {"path": "train.jsonl"},
        "evaluation": {"dataset": {"path": "eval.jsonl"}, "threshold": 0.1},
        "rewards": [{"python": "rewards.py:letters", "timeout_s": 20}],
        "algorithm": {"group_size": GROUP_SIZE, "kl": {"coefficient": 0.05}},
        "rollout": {"max_tokens": 24, "max_instances": 2},
        # One sample a pass: log-probs then do not depend on which samples finish together, and two
        # runs agree to the last bit.
        "reference": {"tokens_per_microbatch": 1},
        "objective": {"time_weight": 1.0},
        "training": {
            "steps": STEPS,
            "prompts_per_step": PROMPTS_PER_STEP,
            "learning_rate": 1e-3,
            "checkpoint_every": 2,
            "keep_versions": 10,
        },
    }


def wait_for(
    condition: Callable[[], T | None], what: str, within_s: float = WAIT_S, pause_s: float = 0.01
) -> T:
    give_up = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < give_up, f"never came to be: {what}"
        time.sleep(pause_s)
    return found


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def explained(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass
class Running:
    """A command at work; its output goes to files, so nothing can block it."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def ended(self, within_s: float = WAIT_S) -> Ended:
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.so_far().explained()}") from None
        return self.so_far()

    def so_far(self) -> Ended:
        code = self.process.poll()
        return Ended(-1 if code is None else code, self.out.read_text(), self.err.read_text())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def alive(self) -> bool:
        return self.process.poll() is None


@dataclass
class Workplace:
    """``with Workplace(...) as place``; leaving it ends whatever still runs."""

    folder: Path
    model: Path
    mark: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        # Short, because Unix sockets go there, and pytest's folders have long names.
        self.tmp = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
        self.gates = self.folder / "gates"
        self.gates.mkdir(parents=True)
        self._commands: list[subprocess.Popen[bytes]] = []
        self.write_job(job(self.model))
        (self.folder / "rewards.py").write_text(REWARD)
        goals = "abcdefghijklmnopqrstuvwxyz"
        rows = [{"prompt": f"{g}{n}=", "goal": g} for n, g in enumerate(goals[:20])]
        self.write_rows("train.jsonl", rows[:12])
        self.write_rows("eval.jsonl", rows[12:16])

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self._commands:
            command.wait()
        shutil.rmtree(self.tmp, ignore_errors=True)

    # --- what a run starts from ---------------------------------------------------------------

    @property
    def job_file(self) -> Path:
        return self.folder / "job.yaml"

    def write_job(self, content: dict[str, Any]) -> None:
        self.job_file.write_text(yaml.safe_dump(content))

    def change_job(self, **sections: Any) -> None:
        """Update sections of the job file (``training={"steps": 5}``); a list replaces one."""
        content = yaml.safe_load(self.job_file.read_text())
        for name, value in sections.items():
            if isinstance(value, dict):
                content[name] = {**content.get(name, {}), **value}
            else:
                content[name] = value
        self.write_job(content)

    def write_rows(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    # --- commands -----------------------------------------------------------------------------

    def start(self, *arguments: str, gated: bool = False, **environment: str) -> Running:
        """The command line with ``arguments``, working in the folder."""
        module = "tests.apps.gated_cli" if gated else "rlhfless.cli.main"
        number = len(self._commands) + 1
        out, err = (self.folder / f"command-{number}.{kind}" for kind in ("out", "err"))
        kept = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={
                    **kept,
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self.tmp),
                    "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),  # not ours to clean
                    "RLHFLESS_TEST_MARK": self.mark,
                    "RLHFLESS_TEST_GATES": str(self.gates),
                    "COLUMNS": "200",
                    **environment,
                },
            )
        self._commands.append(process)
        return Running(process, out, err)

    def run(self, *arguments: str, within_s: float = WAIT_S, **environment: str) -> Ended:
        return self.start(*arguments, **environment).ended(within_s)

    def start_job(self, out: str = "run", *arguments: str, gated: bool = False) -> Running:
        return self.start("run", "job.yaml", "--out", out, *arguments, gated=gated)

    # --- gates --------------------------------------------------------------------------------

    def gate(
        self, name: str, call: str, after: str = "begin", action: str = "wait", times: int = 1
    ) -> None:
        """See ``tests/apps/gated.py``."""
        content = {"call": call, "after": after, "action": action, "times": times}
        temporary = self.gates / f"{name}.new"
        temporary.write_text(json.dumps(content))
        temporary.rename(self.gates / f"{name}.json")

    def remove_gate(self, name: str) -> None:
        (self.gates / f"{name}.json").unlink()

    def reached(self, name: str, running: Running, number: int = 0) -> int:
        """Wait until a call is held up at the gate; returns the pid that waits."""
        path = self.gates / f"{name}.reached-{number}"

        def pid() -> int | None:
            text = path.read_text() if path.exists() else ""
            assert running.alive() or text, (
                f"it ended before gate {name}\n{running.so_far().explained()}"
            )
            return int(text or 0)

        return wait_for(pid, f"gate {name}")

    def open(self, name: str) -> None:
        (self.gates / f"{name}.open").touch()

    def calls(self, pattern: str = "") -> list[dict[str, Any]]:
        """The calls that functions began, in order, whose id contains ``pattern``."""
        path = self.gates / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if pattern in call["call"]]

    # --- what is there ------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Living processes of this workplace's commands, with their command lines.

        By the mark, or by the folder in the command line: redis-server writes over its environment.
        """
        return marked(self.mark, f"{self.tmp}/")

    def instances(self, function: str) -> list[int]:
        """Process ids of a function's living instances, known by the log they write to."""
        logs = {pid: _stderr_of(pid) for pid in self.processes()}
        return [pid for pid, log in logs.items() if log.startswith(f"{function}-")]

    def assert_nothing_left(self, within_s: float = GONE_WITHIN_S) -> None:
        """No process, socket or temporary folder."""
        give_up = time.monotonic() + within_s
        while left := self.left():
            assert time.monotonic() < give_up, f"left behind: {left}"
            time.sleep(0.05)

    def left(self) -> list[str]:
        return [*self.processes().values(), *glob.glob(f"{self.tmp}/*")]

    def journaled(self, step: int, out: str = "run") -> set[str]:
        """Ids of the open step's finished samples, asked of the running job's own Redis."""
        (socket,) = glob.glob(f"{self.tmp}/*/redis.sock")
        with Redis(unix_socket_path=socket) as client:
            key = f"rlhfless:{{{self.result(out).id}}}:step:{step}:samples"
            return {name.decode() for name in client.hkeys(key)}

    def result(self, out: str = "run") -> Result:
        return Result(self.folder / out)


def _stderr_of(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/fd/2"))
    except OSError:
        return ""


@dataclass
class Result:
    """The folder of a run that has ended."""

    path: Path

    @property
    def id(self) -> str:
        return (self.path / "id").read_text().strip()

    @property
    def summary(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return content

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def samples(self, step: int) -> dict[str, dict[str, Any]]:
        path = self.path / "samples" / f"step-{step:06d}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row for row in rows}

    @property
    def weights(self) -> bytes:
        return (self.path / "weights" / "model.safetensors").read_bytes()

    def manifests(self) -> list[Manifest]:
        store, name = ObjectStore(str(self.path / "store")), self.id
        found = [read_manifest(store, name, version) for version in versions(store, name)]
        return [manifest for manifest in found if manifest is not None]


def assert_same(result: Result, expected: Result, steps: int = STEPS) -> None:
    """The run did exactly what the undisturbed one did: every step and sample once, the same
    samples, the same weights to the last bit."""
    assert result.summary["status"] == "succeeded"
    assert result.summary["steps"] == steps
    manifests = result.manifests()
    assert [m.version for m in manifests] == list(range(1, steps + 1))
    assert [m.parent for m in manifests] == list(range(steps))
    assert [m.call_id for m in manifests] == [f"step-{n:06d}/training/train" for n in range(steps)]
    assert [m["step"] for m in result.metrics] == list(range(1, steps + 1))
    for name in ("reward/mean", "response_length/mean", "policy/loss", "policy/grad_norm"):
        assert [m[name] for m in result.metrics] == [m[name] for m in expected.metrics], name
    for step in range(1, steps + 1):
        assert result.samples(step) == expected.samples(step)
    for name in ("eval_before", "eval_after", "samples_before", "samples_after"):
        assert result.summary[name] == expected.summary[name], name
    assert result.weights == expected.weights
