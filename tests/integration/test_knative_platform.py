"""The Knative platform against stand-ins of its API server and of Knative, with real processes as
pods: what happens to Services, pods and calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlhfless.messages import Finished, RolloutDone, Tokens
from tests.support.knative_platforms import world
from tests.support.processes import frames_of, rollout, until

pytestmark = pytest.mark.slow


def test_a_call_starts_a_pod_and_leaving_takes_all_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            async with place.platform() as platform:
                assert platform.instances() == ()
                frames = await frames_of(platform, rollout(samples=2))
                assert [type(f) for f in frames] == [Tokens, Finished, RolloutDone]
                (tokens, *_) = frames
                assert isinstance(tokens, Tokens)
                (pod,) = place.cluster.pods
                assert pod.process is not None
                assert tokens.tokens[0] == pod.process.pid
                await until(lambda: [i.state for i in platform.instances()] == ["idle"])
                assert [i.id for i in platform.instances()] == [pod.name]
            assert place.cluster.pods == []
            assert not any(place.api.store.objects.values())

    asyncio.run(run())
