from controller.call_contents import CallContents
from controller.collector import Collector, Sample
from rlhfless.messages import Tokens


def collector() -> Collector:
    held = Collector(
        [
            Sample("a", 0, (1, 2), seed=1, max_tokens=9),
            Sample("b", 0, (1, 2), seed=2, max_tokens=9),
            Sample("c", 1, (3,), seed=3, max_tokens=9),
        ]
    )
    logprobs = b"\0" * 4
    held.tokens(
        ["b"],
        Tokens(samples=[0], starts=[0], counts=[1], tokens=[8], logprobs=logprobs, version=0),
    )
    return held


def test_tasks_carry_each_prompt_once_and_the_tokens_so_far() -> None:
    contents = CallContents(collector())
    prompts, tasks = contents.add(["b", "c"])
    assert prompts == [[1, 2], [3]]
    assert [(t.id, t.prompt, t.tokens) for t in tasks] == [("b", 0, [8]), ("c", 1, [])]
    prompts, tasks = contents.add(["a"])
    assert prompts == []
    assert [(t.id, t.prompt) for t in tasks] == [("a", 0)]
    assert contents.ids == ["b", "c", "a"]


def test_without_dedup_every_sample_brings_its_prompt() -> None:
    contents = CallContents(collector(), dedup=False)
    prompts, tasks = contents.add(["a", "b"])
    assert prompts == [[1, 2], [1, 2]]
    assert [t.prompt for t in tasks] == [0, 1]
    assert contents.add(["c"])[1][0].prompt == 2
