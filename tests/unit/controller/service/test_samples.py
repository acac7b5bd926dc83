"""A step's samples: what is written, and the pages that are read."""

from __future__ import annotations

import array
import asyncio
import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.collector import FinishedSample
from controller.dataset import PromptOrder, Row
from controller.job import Data, Prompt, StepSamples
from controller.journal import Scores
from controller.service.reads import GoneError, Reads
from controller.service.sample_reader import Samples
from controller.service.samples import SampleKeeper, samples_name
from controller.tokenizer import PromptTokenizer
from rlhfless import rest
from rlhfless.errors import NotFoundError, TransientError
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec, ModelSpec

SPEC = JobSpec.model_validate(
    {
        "model": {"path": "m"},
        "dataset": {"path": "d.jsonl"},
        "rewards": [{"python": "/r.py:right"}, {"python": "/r.py:short"}],
    }
)
REWARDS = [0.5, 1.0, -1.0, 0.5, 2.0, 0.5, 0.0]
IDS = [f"0/{i // 4}/{i % 4}" for i in range(len(REWARDS))]


@pytest.fixture(scope="module")
def data(tiny_model_dir: Path) -> Data:
    tokenizer = PromptTokenizer.load(ModelSpec(path=str(tiny_model_dir)))
    return Data(tokenizer, [2], [], PromptOrder(1, 0, False), [])


def step_samples(data: Data, step: int = 0, logprob: float = -0.123456) -> StepSamples:
    tokens = [*data.tokenizer.tokens_of("a1 b\n"), 2]
    samples = [
        FinishedSample(
            id=id_,
            tokens=tokens,
            logprobs=array.array("f", [logprob] * len(tokens)).tobytes(),
            reason="stop",
            versions=[step, len(tokens)],
        )
        for id_ in IDS
    ]
    chat: Any = [{"role": "user", "content": "ümlaut \r\n?"}]
    prompt = Prompt("p", Row(chat, {}, "row"), (1,))
    scores = {id_: Scores(r, [r, None]) for id_, r in zip(IDS, REWARDS, strict=True)}
    return StepSamples(step, samples, scores, dict.fromkeys(IDS, prompt))


def kept(folder: Path, data: Data, *steps: int) -> ObjectStore:
    objects = ObjectStore(str(folder))
    keep = SampleKeeper(objects, "job", SPEC, data)
    for step in steps:
        keep(step_samples(data, step))
    return objects


def pages(samples: Samples, sort: Any, limit: int, tokens: bool = False) -> list[Any]:
    async def main() -> list[Any]:
        found: list[Any] = []
        while True:
            after = found[-1].id if found else None
            sent = await samples.page("job", 1, sort, after, limit, tokens=tokens)
            page = rest.Page[rest.Rollout].model_validate_json(sent)
            found += page.data
            if not page.has_more:
                return found

    return asyncio.run(main())


def test_a_sample_is_read_as_it_was_made(tmp_path: Path, data: Data) -> None:
    samples = Samples(kept(tmp_path, data, 0), Reads())
    first = pages(samples, "id", 100, tokens=True)[1]
    assert (first.id, first.step, first.version, first.num_tokens) == ("0/0/1", 1, 0, 6)
    assert first.prompt == [{"role": "user", "content": "ümlaut \r\n?"}]
    assert (first.completion, first.finish_reason) == ("a1 b\n", "stop")
    assert (first.reward, first.rewards) == (1.0, {"right": 1.0, "short": None})
    assert [t.text for t in first.tokens] == ["a", "1", " ", "b", "\n", "<eos>"]
    assert {t.logprob for t in first.tokens} == {-0.1235}
    assert pages(samples, "id", 100)[0].tokens is None


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_are_sorted_and_whole(tmp_path: Path, data: Data, limit: int) -> None:
    samples = Samples(kept(tmp_path, data, 0), Reads())
    assert [s.id for s in pages(samples, "id", limit)] == IDS
    for sort, sign in (("reward", 1), ("-reward", -1)):
        expected = sorted(zip(REWARDS, IDS, strict=True), key=lambda pair: sign * pair[0])
        found = pages(samples, sort, limit)
        assert [(s.reward, s.id) for s in found] == expected


def test_writing_again_gives_the_same_bytes(tmp_path: Path, data: Data) -> None:
    objects = kept(tmp_path, data, 0)
    before = objects.get(samples_name("job", 1))
    kept(tmp_path, data, 0)
    assert objects.get(samples_name("job", 1)) == before


def test_a_log_prob_that_is_no_number_is_null(tmp_path: Path, data: Data) -> None:
    objects = ObjectStore(str(tmp_path))
    SampleKeeper(objects, "job", SPEC, data)(step_samples(data, logprob=float("nan")))
    shown = pages(Samples(objects, Reads()), "id", 1, tokens=True)[0].tokens
    assert {t.logprob for t in shown} == {None}


def test_a_step_is_unpacked_once_and_the_oldest_given_up(tmp_path: Path, data: Data) -> None:
    objects = kept(tmp_path, data, 0, 1)
    size = len(gzip.decompress(objects.get(samples_name("job", 1)))) - len(IDS)
    samples = Samples(objects, Reads(), keep_bytes=size)

    async def read(step: int) -> None:
        await samples.page("job", step, "id", None, 1, tokens=False)

    asyncio.run(read(1))
    objects.delete(samples_name("job", 1))
    asyncio.run(read(1))
    asyncio.run(read(2))
    with pytest.raises(GoneError):
        asyncio.run(read(1))


def damaged(whole: bytes) -> dict[str, bytes]:
    lines = gzip.decompress(whole).splitlines()
    row = msgspec.json.decode(lines[0])
    return {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "no gzip": b"{}",
        "flipped": whole[:20] + bytes([whole[20] ^ 0xFF]) + whole[21:],
        "no rows": gzip.compress(b"[1]\n"),
        "a field is missing": gzip.compress(
            msgspec.json.encode({k: v for k, v in row.items() if k != "prompt"})
        ),
    }


@pytest.mark.parametrize(
    "how", ["cut", "empty", "no gzip", "flipped", "no rows", "a field is missing"]
)
def test_what_the_store_has_lost_is_told(tmp_path: Path, data: Data, how: str) -> None:
    objects = kept(tmp_path, data, 0)
    objects.put(samples_name("job", 1), damaged(objects.get(samples_name("job", 1)))[how])
    samples = Samples(objects, Reads())
    with pytest.raises(GoneError, match="step 1 are damaged"):
        asyncio.run(samples.page("job", 1, "id", None, 1, tokens=True))
    with pytest.raises(GoneError, match="step 2 are no longer kept"):
        asyncio.run(samples.page("job", 2, "id", None, 1, tokens=True))


def test_a_sample_that_is_not_there(tmp_path: Path, data: Data) -> None:
    samples = Samples(kept(tmp_path, data, 0), Reads())
    with pytest.raises(NotFoundError, match="no sample '9/9/9'") as caught:
        asyncio.run(samples.page("job", 1, "id", "9/9/9", 1, tokens=False))
    assert caught.value.param == "after"


def test_the_stores_paths_stay_with_us(tmp_path: Path, data: Data) -> None:
    objects = kept(tmp_path, data, 0)
    objects.delete(samples_name("job", 1))
    (tmp_path / samples_name("job", 1)).mkdir(parents=True)  # not readable as an object
    samples = Samples(objects, Reads())
    with pytest.raises(TransientError) as caught:
        asyncio.run(samples.page("job", 1, "id", None, 1, tokens=False))
    assert str(tmp_path) not in caught.value.detail
