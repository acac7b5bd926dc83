"""The entry of one instance: ``python -m functions.host --function rollout --socket PATH``.

Imports the function (``functions.<name>.app:create(FunctionConfig)``, or what ``--app`` names),
serves it by uvicorn on a Unix socket or a port, drains on SIGTERM and then exits. The token comes
by the environment (``RLHFLESS_FUNCTION_TOKEN``), never by the command line, which anyone on the
machine may read. ``functions.zygote`` calls ``run`` in a process forked off a warm one instead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

import msgspec
import uvicorn

from functions.context import Function, FunctionConfig
from functions.ranks import ALONE, Ranks, start
from functions.shell import Shell, create_app
from rlhfless import lifeline
from rlhfless.engines import EngineOptions
from rlhfless.errors import RlhflessError, UserError
from rlhfless.messages import FUNCTION_NAMES, INSTANCE_HEADER, FunctionName

TOKEN_VARIABLE = "RLHFLESS_FUNCTION_TOKEN"  # noqa: S105  (the name of a variable)
DRAIN_GRACE_S = 20.0
_FLUSH_S = 2.0
_log = logging.getLogger(__name__)


class HostConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to run one instance.

    ``socket`` is a Unix socket's path; empty means ``host`` and ``port``. ``log`` is the file that
    stdout and stderr go to (empty: leave them). ``home`` and ``lifeline_fd`` tie the instance to
    its controller (``rlhfless.lifeline``); an instance without them stands alone. ``niceness``: how
    far it stands back for other processes that want to compute, 0 to 19. ``engine``: JSON of
    ``EngineOptions``. ``workers`` make up the instance; they are on ``nodes``, of which this is
    ``node_rank``, and meet at ``rendezvous`` (``functions.ranks``).
    """

    function: FunctionName
    token: str
    app: str = ""
    socket: str = ""
    host: str = "0.0.0.0"  # noqa: S104  (a pod's own address; a token guards it)
    port: int = 8000
    threads: int = 1
    accelerator: str = "cpu"
    concurrency: int = 1
    workdir: str = "."
    engine: str = "{}"
    grace_s: float = DRAIN_GRACE_S
    log: str = ""
    home: str = ""
    lifeline_fd: int = -1
    niceness: int = 0
    workers: int = 1
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""


def run(config: HostConfig) -> NoReturn:
    """Serve until told to stop, then leave the process: 0 after an orderly end, 1 otherwise.

    ``os._exit``, because a worker thread that did not end within the grace would hold up any
    other exit.
    """
    code = 1
    if os.getpid() == 1:  # a container's first process is deaf to signals it does not handle
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    try:
        if config.home:
            lifeline.join(config.home)
        _redirect(config.log)
        ranks = _start_workers(config)
        if config.home:
            lifeline.watch(config.lifeline_fd)
        worker = f"-{ranks.rank}" if ranks.size > 1 else ""
        _name_process(f"rlhf-{config.function}{worker}")
        name = f"worker {ranks.rank} " if ranks.size > 1 else ""
        logging.basicConfig(
            stream=sys.stderr, format=f"%(asctime)s {name}%(levelname)s %(name)s: %(message)s"
        )
        logging.captureWarnings(ranks.size > 1)  # which of them warns
        logging.getLogger("functions").setLevel(logging.INFO)  # what user code prints, too
        set_threads(config.threads)
        _stand_back(config.niceness)
        if ranks.leads:
            asyncio.run(_serve(config, load(config, ranks)))
        else:
            _follow(config, ranks)
        code = 0
    except RlhflessError as error:
        _log.error("%s: %s", error.title, error.detail)
    except BaseException:  # the last frame of this process: its log must have the reason
        _log.exception("the instance failed")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    if not log:
        return
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(null)
    os.close(file)


def _name_process(name: str) -> None:
    """What ``top`` shows; a forked process would show as its zygote."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def set_threads(threads: int) -> None:
    """Bound the threads of numerics here and in child processes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:  # forked off a warm process; otherwise the variables do it
        torch.set_num_threads(threads)


def _start_workers(config: HostConfig) -> Ranks:
    if config.workers == 1:
        return ALONE
    if config.function != "training" and not config.app:
        raise UserError(f"{config.function} runs in one worker", param="workers")
    return start(
        config.workers,
        token=config.token,
        nodes=config.nodes,
        node_rank=config.node_rank,
        rendezvous=config.rendezvous,
    )


def load(config: HostConfig, ranks: Ranks = ALONE) -> Function:
    path = config.app or f"functions.{config.function}.app:create"
    module, _, name = path.partition(":")
    create = getattr(importlib.import_module(module), name, None)
    if create is None:
        raise UserError(f"{path!r} names no function; it should read module:create")
    function: Function = create(_function_config(config, ranks))
    return function


def _follow(config: HostConfig, ranks: Ranks) -> None:
    """A function of several workers has ``follow`` beside ``create``: what all but the first do,
    until they are told to go. It raises ``TransientError`` where its group broke."""
    module = (config.app or f"functions.{config.function}.app").partition(":")[0]
    follow = getattr(importlib.import_module(module), "follow", None)
    if follow is None:
        raise UserError(f"{module} runs in one worker", param="workers")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(_function_config(config, ranks))


def _function_config(config: HostConfig, ranks: Ranks) -> FunctionConfig:
    os.makedirs(config.workdir, exist_ok=True)
    return FunctionConfig(
        threads=config.threads,
        accelerator=config.accelerator,
        workdir=config.workdir,
        engine=msgspec.json.decode(config.engine, type=EngineOptions),
        workers=config.workers,
        ranks=ranks,
    )


class Server(uvicorn.Server):
    """uvicorn without its signal handling: SIGTERM means drain here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(config: HostConfig, function: Function) -> None:
    app = create_app(config.function, function, config.token, concurrency=config.concurrency)
    shell: Shell = app.state.shell
    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            headers=[(INSTANCE_HEADER, os.environ.get("HOSTNAME") or socket.gethostname())],
            timeout_keep_alive=3600,  # the controller closes connections, so none breaks in between
        )
    )
    terminate = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, which stops us
    with listen(config) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(terminate.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # raises what ended it
        await shell.drain(config.grace_s)
        await _flush(server)
    shell.close()


async def _flush(server: uvicorn.Server) -> None:
    """Wait until the kernel has every byte of the last answers; then leaving loses none.

    (uvicorn's own shutdown takes a tenth of a second and more, which idle instances need not.)
    """
    with contextlib.suppress(TimeoutError):  # a reader that has stopped reading misses the rest
        async with asyncio.timeout(_FLUSH_S):
            connections = server.server_state.connections
            while any(c.transport.get_write_buffer_size() for c in connections):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def listen(config: HostConfig) -> socket.socket:
    """A bound socket; uvicorn listens on it. Raises ``UserError`` if the address is taken."""
    try:
        if config.socket:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(config.socket)
        else:
            listener = socket.create_server((config.host, config.port))
            # Connections inherit it; asyncio sets it only where it has made the socket itself.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        where = config.socket or f"{config.host}:{config.port}"
        raise UserError(f"cannot listen on {where}: {error.strerror}") from error
    return listener


def _stand_back(niceness: int) -> None:
    if niceness:
        os.nice(niceness)
        # Where Linux schedules by sessions, niceness counts within one; this is the session's own.
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
            file.write(str(niceness))


def parse(arguments: list[str]) -> HostConfig:
    """Every field of ``HostConfig`` is an option, except the token."""
    parser = argparse.ArgumentParser(
        prog="python -m functions.host", description=__doc__.splitlines()[0] if __doc__ else None
    )
    for item in msgspec.structs.fields(HostConfig):
        option = "--" + item.name.replace("_", "-")
        if item.required and item.name != "token":
            parser.add_argument(option, required=True, choices=FUNCTION_NAMES)
        elif item.name != "token":
            parser.add_argument(option, default=item.default, type=type(item.default))
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:
        parser.error(f"the environment variable {TOKEN_VARIABLE} must hold the function's token")
    return HostConfig(token=token, **vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    run(parse(sys.argv[1:]))
