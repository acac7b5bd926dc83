"""Services of real processes: replicas (``rlhfless serve``) over a Redis of their own, and the
faults that a test does to them. Jobs are those of ``tests.support.runs``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from redis import Redis

from controller.redis_server import server_binary
from rlhfless import Client, rest
from rlhfless.errors import RlhflessError
from tests.support.processes import lives
from tests.support.runs import WAIT_S, Running, Workplace

END_S = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class RedisProcess:
    """A ``redis-server`` that keeps its data when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        words += ["--appendonly", "yes", "--save", "", "--logfile", "redis.log"]
        self._process = subprocess.Popen([server_binary(), *words])
        client = Redis(port=self.port)
        until(client.ping, "Redis answers")
        client.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Replica:
    """A replica in a process of its own."""

    def __init__(self, running: Running, url: str) -> None:
        self.running = running
        self.url = url

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()

    def stop(self) -> None:
        """As a rolling restart does."""
        self.running.process.terminate()
        ended = self.running.ended(END_S)
        assert ended.code == 0, ended.explained()


class Cluster:
    """Replicas on one folder, one Redis (``redis`` None: the bundled one of a single replica)."""

    def __init__(
        self, place: Workplace, *, own_redis: bool = True, instances: int = 8, patience: float = 600
    ) -> None:
        self.place = place
        self.data = place.folder / "data"
        self.instances = instances
        self.patience = patience
        self.redis = RedisProcess(place.folder / "redis") if own_redis else None
        self.replicas: list[Replica] = []
        self._keys: dict[tuple[str, str], str] = {}

    def start(self) -> Replica:
        port = free_port()
        environment = {} if self.redis is None else {"REDIS_URL": self.redis.url}
        words = ["--port", str(port), "--data", str(self.data), "--log-level", "info"]
        words += ["--instances", str(self.instances), "--patience", str(self.patience)]
        running = self.place.start("serve", *words, **environment)
        url = f"http://127.0.0.1:{port}"

        def serving() -> bool:
            assert running.alive(), running.so_far().explained()
            return "Ctrl-C" in running.so_far().out

        until(serving, "the replica serves")
        replica = Replica(running, url)
        self.replicas.append(replica)
        return replica

    def key(self, tenant: str = "default", scope: str = "admin") -> str:
        if self.redis is None:
            return (self.data / "admin-key").read_text().strip()
        if (tenant, scope) not in self._keys:
            words = ["keys", "create", "--tenant", tenant, "--name", "test", "--scope", scope]
            made = self.place.start(*words, "--json", REDIS_URL=self.redis.url).ended()
            assert made.code == 0, made.explained()
            self._keys[tenant, scope] = yaml.safe_load(made.out)["key"]
        return self._keys[tenant, scope]

    @contextlib.contextmanager
    def client(
        self, replica: Replica | None = None, tenant: str = "default", scope: str = "admin"
    ) -> Iterator[Client]:
        url = (replica or self.replicas[0]).url
        with Client(url, self.key(tenant, scope)) as client:
            yield client

    def spec(self, **sections: Any) -> str:
        """The place's job file, with sections changed."""
        self.place.change_job(**sections)
        return str(self.place.job_file)

    def close(self) -> None:
        for replica in self.replicas:
            if replica.running.alive():
                replica.kill()
        if self.redis is not None:
            self.redis.signal(signal.SIGCONT)
            self.redis.kill()


@contextlib.contextmanager
def cluster(place: Workplace, **options: Any) -> Iterator[Cluster]:
    made = Cluster(place, **options)
    try:
        yield made
    finally:
        made.close()


def until(true: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
    """What ``true`` answers once it is something; errors of ours and of Redis are not yet."""
    give_up = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < give_up:
        try:
            if found := true():
                return found
        except (RlhflessError, OSError) as error:
            last = error
        except Exception as error:  # of Redis, which is not there yet
            if type(error).__module__.partition(".")[0] != "redis":
                raise
            last = error
        time.sleep(0.05)
    raise AssertionError(f"it does not come that {what} ({last})")


def states(client: Client, job: str) -> list[str]:
    """The states that a job's events tell, in order."""
    return [e.data["state"] for e in client.jobs.events(job, follow=False) if e.type == "state"]


def in_state(client: Client, job: str, *wanted: str) -> Callable[[], rest.Job | None]:
    def look() -> rest.Job | None:
        found = client.jobs.get(job)
        return found if found.state in wanted else None

    return look


def assert_whole(client: Client, job: str, steps: int) -> None:
    """Every step once: in the events, in the metrics, on top of one another, and in the books."""
    events = list(client.jobs.events(job, follow=False))
    told = [event.data["step"] for event in events if event.type == "step"]
    assert told == list(range(1, steps + 1))
    metrics = list(client.jobs.metrics(job))
    assert [one.step for one in metrics] == told
    usage = client.jobs.usage(job)
    spans = list(client.jobs.timeline(job))
    spent = sum((span.end_at or 0.0) - span.start_at for span in spans)
    assert abs(spent - usage.total.held_s) <= 0.02 * usage.total.held_s + 3.0 * len(
        {span.instance for span in spans}
    )
    found = client.jobs.get(job)
    assert found.progress.steps_done == steps


def below(pid: int, name: str) -> list[int]:
    """Living processes that a process has started, and those that they have, whose name begins so;
    that of an instance is ``rlhf-`` and its function."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and lives(int(entry)):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = []
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().startswith(name):
                    found.append(child)
    return found
