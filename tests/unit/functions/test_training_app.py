"""Gradients through the shell: their effect is in an instance's memory, so every call is made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from functions.context import CallContext, FunctionConfig, Handler
from functions.training.app import TrainingFunction
from rlhfless.frames import encode_request
from rlhfless.messages import Frame, GradientsDone, GradientsRequest, Request, TrainDone
from tests.support.shell import Service
from tests.support.training import Job, make_batch

GRADIENTS, TRAIN = "/v1/gradients", "/v1/train"


class Counting:
    """The training function, and the calls that reached it."""

    def __init__(self) -> None:
        self._function = TrainingFunction(FunctionConfig())
        self.calls: list[str] = []
        self.handlers: Mapping[type[Request], Handler] = {
            kind: self._counted(handler) for kind, handler in self._function.handlers.items()
        }

    def _counted(self, handler: Handler) -> Handler:
        def handle(request: Request, context: CallContext) -> Iterator[Frame]:
            self.calls.append(request.call.id)
            yield from handler(request, context)

        return handle

    def close(self) -> None:
        self._function.close()


def test_a_repeat_on_another_instance_is_computed_there(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    asyncio.run(repeat_elsewhere(Job(tmp_path, tiny_model_dir)))


async def repeat_elsewhere(job: Job) -> None:
    batch = make_batch()
    train = job.request(0, batch=batch)
    request: GradientsRequest = job.gradients_request(train, batch, [0, 1])
    request = msgspec.structs.replace(
        request, call=msgspec.structs.replace(request.call, id="step-000000/training/gradients-1")
    )
    functions = [Counting(), Counting()]
    services = [Service(function) for function in functions]  # type: ignore[arg-type]
    for service in (services[0], services[0], services[1]):
        client = await service.ask(GRADIENTS, encode_request(request))
        assert client.frames == [GradientsDone(num_samples=8)]
    assert [len(function.calls) for function in functions] == [2, 1]
    client = await services[1].ask(TRAIN, encode_request(train))
    done = client.frames[-1]
    assert isinstance(done, TrainDone) and done.version == 1
    assert done.metrics["training/overlapped_share"] > 0
    for service in services:
        service.shell.close()
