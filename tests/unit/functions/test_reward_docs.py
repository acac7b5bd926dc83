"""The examples of ``docs/rewards.md`` run as they stand there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.context import CallContext, FunctionConfig
from functions.reward.app import RewardScoring
from rlhfless.messages import CallInfo, RewardDone, RewardFunction, RewardRequest
from rlhfless.objects import ObjectStore
from rlhfless.spec import RewardSpec

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)[^\n]*\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def service() -> Iterator[RewardScoring]:
    made = RewardScoring(FunctionConfig())
    yield made
    made.close()


def _scores(
    service: RewardScoring, functions: list[RewardFunction], completions: list[str]
) -> RewardDone:
    count = len(completions)
    request = RewardRequest(
        call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
        functions=functions,
        sample_ids=[f"s{i}" for i in range(count)],
        prompts=["p"] * count,
        completions=completions,
        completion_ids=[list(range(10 * len(c))) for c in completions],
        columns={"answer": ["4", "four", ""]},
    )
    context = CallContext(store=ObjectStore("memory://"), deadline=time.monotonic() + 60)
    done = list(service.score(request, context))[-1]
    assert isinstance(done, RewardDone)
    return done


def _python(folder: Path, file: str, name: str, **settings: Any) -> RewardFunction:
    path = folder / file
    path.write_text(FILES[file])
    return RewardFunction(name=name, kind="python", target=f"{path}:{name}", **settings)


def test_the_python_examples(service: RewardScoring, tmp_path: Path) -> None:
    functions = [
        _python(tmp_path, "rewards.py", "correct"),
        _python(tmp_path, "rewards.py", "concise", weight=0.2),
        _python(tmp_path, "judge.py", "judged"),
    ]
    done = _scores(service, functions, ["4", "fore", ""])
    assert done.scores == [[1.0, 0.0, 1.0], [0.9, pytest.approx(0.6), None], [0.0, 1.0, 0.0]]
    assert done.totals == [pytest.approx(1.18), pytest.approx(1.12), 1.0]


def test_the_server_example(service: RewardScoring) -> None:
    names: dict[str, Any] = {"__name__": "server"}
    exec(compile(FILES["server.py"], "server.py", "exec"), names)
    handler = type("Quiet", (names["Score"],), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/score"
        endpoint = RewardFunction(name="judge", kind="http", target=url)
        try:
            assert _scores(service, [endpoint], ["4", "5", ""]).totals == [1.0, 0.0, 1.0]
        finally:
            server.shutdown()
            thread.join()


def test_the_yaml_example_is_a_valid_section() -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    rewards = [RewardSpec.model_validate(r) for r in yaml.safe_load(block[1])["rewards"]]
    assert [r.weight for r in rewards] == [1.0, 0.2, 1.0, 1.0]
