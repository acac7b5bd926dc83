"""What a job's pods say: followed through the API server, into files that its log is read from.

The container of each pod is followed from its start to its end, over broken connections and
restarts, so that the last words of one that crashed are among them. Pods of Services that jobs
share are followed while no other job uses them: what they say then is this one's, else nobody's.

In bounded room: a pod's lines are written to pieces of ``PIECE_BYTES``, and read on only when who
keeps the log has taken earlier ones; ``MOST_FOLLOWED`` pods are followed at a time, others when
one of them has ended. Nothing here can fail a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from controller.platforms.knative_log_place import LineSplitter, LogPlace
from controller.platforms.kube import Kube, Object
from controller.platforms.kube_refusals import Refusal
from controller.platforms.local_logs import LogFiles, LogSlice
from rlhfless.errors import RlhflessError, of_os_error

PIECE_BYTES = 1 << 20
MOST_PIECES = 4
MOST_FOLLOWED = 64
"""Each is a connection to the API server."""
LINGER_S = 5.0
"""How long what a pod has said may take to come after its end."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 20.0
_NOT_YET = 400
"""The API server's answer while the container waits to be started."""
_SIDECAR = "queue-proxy"
_SERVICE = "serving.knative.dev/service"
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Followed:
    """``service``: whose pod it is; ``changed``: it was started or restarted, or is gone; ``room``:
    a piece of it was taken; ``rest``: of a line that was not told to its end."""

    name: str
    service: str
    container: str
    place: LogPlace
    restarts: int = 0
    gone: bool = False
    rest: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    piece: LogSlice | None = None
    piece_bytes: int = 0
    pending: list[LogSlice] = field(default_factory=list)


class PodLogs:
    """``labels``: of pods that are the job's own; ``since_s``: Unix time up to which the log of
    those that are there already has been kept (by another controller). ``name`` tells apart who
    follows the same pods into the same ``files``."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        labels: Mapping[str, str],
        files: LogFiles,
        *,
        name: str,
        since_s: float = 0.0,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._labels = labels
        self._files = files
        self._name = name
        self._since_s = since_s
        self._told: list[Object] = []
        self._alone: dict[str, float] = {}  # by shared Service: Unix time since when
        self._pods: dict[str, _Followed] = {}
        self._parts: list[_Followed] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MOST_FOLLOWED)
        self._numbers = itertools.count(1)
        self._refused = False

    def update(self, pods: Iterable[Object]) -> None:
        """These are all pods there are now; some may be of shared Services."""
        self._told = list(pods)
        self._take()
        self._since_s = 0.0  # pods that come from now on have said nothing to anybody

    def _take(self) -> None:
        told = {pod["metadata"]["name"]: pod for pod in self._told if self._is_ours(pod)}
        for name in self._pods.keys() - told.keys():
            gone = self._pods.pop(name)
            gone.gone = True
            gone.changed.set()
            if (task := self._tasks.get(name)) is not None:
                asyncio.get_running_loop().call_later(LINGER_S, task.cancel)
        for name, pod in told.items():
            self._note(name, pod)
        self._parts = [p for p in self._parts if p.pending or p.piece or p.name in self._tasks]

    def share(self, service: str, *, alone: bool) -> None:
        """Whether this job alone uses a Service that others may use, too."""
        if alone and service not in self._alone:
            self._alone[service] = time.time()
            self._take()
        elif not alone and service in self._alone:
            _log.info("%s is used by other jobs too: what its pods say is not kept", service)
            del self._alone[service]
            for name in [name for name, pod in self._pods.items() if pod.service == service]:
                del self._pods[name]
                if (task := self._tasks.get(name)) is not None:
                    task.cancel()

    def slices(self) -> list[LogSlice]:
        return [
            part
            for pod in self._parts
            for part in (*pod.pending, *([pod.piece] if pod.piece is not None else ()))
        ]

    def drop(self, parts: Iterable[LogSlice]) -> None:
        """These have been read to their end."""
        dropped = set(parts)
        for pod in self._parts:
            taken = [part for part in pod.pending if part in dropped]
            if taken:
                pod.pending = [part for part in pod.pending if part not in dropped]
                self._files.drop(taken)
                pod.room.set()

    async def close(self, linger_s: float = LINGER_S) -> None:
        """End; what has been read by then stays to be taken."""
        tasks = list(self._tasks.values())
        if tasks and linger_s:
            await asyncio.wait(tasks, timeout=linger_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- pods -------------------------------------------------------------------------------------

    def _is_ours(self, pod: Object) -> bool:
        labels: Mapping[str, str] = pod["metadata"].get("labels", {})
        return self._labels.items() <= labels.items() or labels.get(_SERVICE, "") in self._alone

    def _note(self, name: str, pod: Object) -> None:
        container = next(c["name"] for c in pod["spec"]["containers"] if c["name"] != _SIDECAR)
        service = pod["metadata"]["labels"].get(_SERVICE, "")
        statuses = pod.get("status", {}).get("containerStatuses", [])
        status: Object = next((s for s in statuses if s["name"] == container), {})
        restarts = int(status.get("restartCount", 0))
        begun = {"running", "terminated"} & status.get("state", {}).keys()
        known = self._pods.get(name)
        if known is None and (begun or restarts):
            place = LogPlace(self._alone.get(service, self._since_s))
            known = _Followed(name, service, container, place, restarts)
            self._pods[name] = known
            self._parts.append(known)
            task = asyncio.create_task(self._follow(known), name=f"log-{name}")
            self._tasks[name] = task
            task.add_done_callback(partial(self._ended, name))
        elif known is not None and (begun or restarts > known.restarts):
            known.restarts = restarts
            known.changed.set()

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _follow(self, pod: _Followed) -> None:
        """To the pod's end, whatever happens on the way."""
        try:
            async with self._places:
                await self._follow_lives(pod)
        except (RlhflessError, OSError) as error:
            told = error if isinstance(error, RlhflessError) else of_os_error("cannot write", error)
            if not self._refused:
                _log.warning("what pods say is not kept any more: %s", told.detail)
            self._refused = True
        finally:
            with contextlib.suppress(OSError):
                self._write(pod, [pod.rest] if b" " in pod.rest else [])
            self._end_piece(pod)

    async def _follow_lives(self, pod: _Followed) -> None:
        restarts = 0
        pause_s = _FIRST_PAUSE_S
        while not self._refused:
            pod.changed.clear()
            gone = pod.gone
            if pod.restarts > restarts:  # of what died meanwhile
                restarts = pod.restarts
                await self._read(pod, previous=True)
            there, lines = await self._read(pod, follow=not gone)
            if gone or not there:
                return
            pause_s = _FIRST_PAUSE_S if lines else min(_LONGEST_PAUSE_S, 2 * pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await pod.changed.wait()

    async def _read(
        self, pod: _Followed, *, follow: bool = False, previous: bool = False
    ) -> tuple[bool, int]:
        """Whether the pod is there, and how many lines it had to say."""
        pod.place.begin()
        splitter = LineSplitter()
        count = 0
        try:
            chunks = self._kube.log(
                pod.name,
                pod.container,
                self._namespace,
                since=pod.place.since,
                follow=follow,
                previous=previous,
            )
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    count += await self._keep(pod, splitter.feed(chunk))
            pod.rest = splitter.rest  # in whole when it is read again, if it is
            if previous:
                count += await self._keep(pod, [pod.rest])
                pod.rest = b""
        except Refusal as refusal:
            if refusal.status == 404:
                return False, count
            if not (refusal.passes or refusal.status == _NOT_YET):
                raise refusal.error(f"read the log of {pod.name}") from refusal
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            _log.info("the log of %s broke off: %s", pod.name, error)
        return True, count

    # --- pieces -----------------------------------------------------------------------------------

    async def _keep(self, pod: _Followed, lines: Iterable[bytes]) -> int:
        count = self._write(pod, lines)
        while len(pod.pending) >= MOST_PIECES:
            pod.room.clear()
            await pod.room.wait()
        return count

    def _write(self, pod: _Followed, lines: Iterable[bytes]) -> int:
        told = (pod.place.take(line) for line in lines if line)
        texts = [text for text in told if text is not None]
        if not texts:
            return 0
        if pod.piece is None:
            number = next(self._numbers)
            pod.piece = self._files.begin(pod.name, f"{pod.name}-{self._name}-{number}")
            pod.piece_bytes = 0
        data = b"".join(text + b"\n" for text in texts)
        with open(pod.piece.path, "ab") as file:
            file.write(data)
        pod.piece_bytes += len(data)
        if pod.piece_bytes >= PIECE_BYTES:
            self._end_piece(pod)
        return len(texts)

    def _end_piece(self, pod: _Followed) -> None:
        if pod.piece is not None:
            pod.pending.append(self._files.end(pod.piece))
            pod.piece = None
