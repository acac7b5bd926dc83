import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.collector import Collector, FinishedSample, Sample, logprob_values
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import Finished, Tokens

PROMPT = (1, 2, 3)


def collector(*ids: str) -> Collector:
    return Collector(Sample(i, 0, PROMPT, seed=7, max_tokens=64) for i in ids)


def frame(index: int, start: int, tokens: list[int], version: int = 0) -> Tokens:
    logprobs = array.array("f", [-float(t) for t in tokens]).tobytes()
    return Tokens(
        samples=[index],
        starts=[start],
        counts=[len(tokens)],
        tokens=tokens,
        logprobs=logprobs,
        version=version,
    )


def test_columns_go_to_their_samples() -> None:
    c = collector("a", "b")
    logprobs = array.array("f", [-1, -2, -3]).tobytes()
    taken = c.tokens(
        ["a", "b"],
        Tokens(
            samples=[1, 0],
            starts=[0, 0],
            counts=[1, 2],
            tokens=[5, 6, 7],
            logprobs=logprobs,
            version=4,
        ),
    )
    assert taken == 3
    done = c.finished(["a", "b"], Finished(samples=[0, 1], reasons=["stop", "length"]))
    assert [(d.id, d.tokens, d.reason, d.versions) for d in done] == [
        ("a", [6, 7], "stop", [4, 2]),
        ("b", [5], "length", [4, 1]),
    ]
    assert list(logprob_values(done[0].logprobs)) == [-2, -3]


def test_repeated_positions_change_nothing() -> None:
    c = collector("a")
    assert c.tokens(["a"], frame(0, 0, [5, 6])) == 2
    assert c.tokens(["a"], frame(0, 1, [6, 7])) == 1
    assert c.tokens(["a"], frame(0, 0, [5])) == 0
    assert c.task("a", 0).tokens == [5, 6, 7]


def test_a_gap_is_an_error_another_attempt_may_cure() -> None:
    c = collector("a")
    with pytest.raises(TransientError, match="missing"):
        c.tokens(["a"], frame(0, 1, [5]))


def test_disagreement_is_a_defect() -> None:
    c = collector("a")
    c.tokens(["a"], frame(0, 0, [5, 6]))
    with pytest.raises(InternalError, match="disagrees"):
        c.tokens(["a"], frame(0, 0, [5, 9]))


def test_tokens_after_the_end_are_a_defect() -> None:
    c = collector("a")
    c.tokens(["a"], frame(0, 0, [5]))
    c.finished(["a"], Finished(samples=[0], reasons=["stop"]))
    with pytest.raises(InternalError, match="after its end"):
        c.tokens(["a"], frame(0, 1, [6]))


def test_finishing_twice_counts_once() -> None:
    c = collector("a")
    c.tokens(["a"], frame(0, 0, [5]))
    frame_ = Finished(samples=[0], reasons=["stop"])
    assert len(c.finished(["a"], frame_)) == 1
    assert c.finished(["a"], frame_) == []


def test_an_end_without_a_token_is_refused() -> None:
    with pytest.raises(TransientError, match="without a token"):
        collector("a").finished(["a"], Finished(samples=[0], reasons=["stop"]))


def test_logprobs_must_match_tokens() -> None:
    bad = Tokens(samples=[0], starts=[0], counts=[1], tokens=[5], logprobs=b"", version=0)
    with pytest.raises(TransientError, match="one log-prob per token"):
        collector("a").tokens(["a"], bad)


def test_versions_are_run_length_encoded() -> None:
    c = collector("a")
    c.tokens(["a"], frame(0, 0, [5, 6], version=1))
    c.tokens(["a"], frame(0, 2, [7], version=1))
    c.tokens(["a"], frame(0, 3, [8], version=2))
    c.finished(["a"], Finished(samples=[0], reasons=["stop"]))
    assert c.response("a").versions == [1, 3, 2, 1]


def test_finished_samples_of_an_earlier_attempt_are_kept() -> None:
    done = FinishedSample(id="a", tokens=[5], logprobs=b"\0\0\0\0", reason="stop", versions=[0, 1])
    c = Collector([Sample(i, 0, PROMPT, 7, 64) for i in "ab"], [done])
    assert c.all_remaining() == ["b"]
    assert c.done() == [done]


@given(st.lists(st.integers(0, 63), min_size=1, max_size=40), st.data())
def test_any_cutting_into_overlapping_frames_gives_the_same_sample(
    tokens: list[int], data: st.DataObject
) -> None:
    c = collector("a")
    held = 0
    while held < len(tokens):
        start = data.draw(st.integers(0, held))
        end = data.draw(st.integers(held + 1, len(tokens)))
        c.tokens(["a"], frame(0, start, tokens[start:end]))
        held = end
    c.finished(["a"], Finished(samples=[0], reasons=["length"]))
    response = c.response("a")
    assert response.tokens == tokens
    assert list(logprob_values(response.logprobs)) == [-float(t) for t in tokens]
