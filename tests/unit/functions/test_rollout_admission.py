from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.rollout.admission import PREFILL_CHUNK_TOKENS, Admission, Limits
from functions.rollout.roster import Roster
from rlhfless.messages import RolloutRequest, SampleTask
from tests.support.rollout import make_request, make_tasks

ROOMY = 10**9


def make(
    prompt_lengths: list[int],
    group: int,
    limits: Limits,
    *,
    shared: bool = False,
    max_tokens: int = 10,
) -> tuple[RolloutRequest, Admission]:
    tasks = make_tasks(len(prompt_lengths), group, max_tokens)
    request = make_request("", [[1] * length for length in prompt_lengths], tasks)
    return request, queued(request, limits, shared=shared)


def queued(request: RolloutRequest, limits: Limits, *, shared: bool = False) -> Admission:
    admission = Admission(Roster.of(request), limits, shared=shared)
    admission.join(range(len(request.samples)))
    return admission


def test_request_order_and_the_batch_bound() -> None:
    _, admission = make([5, 5], 3, Limits(max_batch=4, kv_tokens=ROOMY))
    assert admission.next() == [0, 1, 2, 3]
    assert admission.next() == []
    admission.left([1])
    assert admission.next() == [4]
    assert admission.waiting == [5]


def test_refill_waits_for_some_to_leave_but_not_for_more_than_are_waiting() -> None:
    _, admission = make([5], 7, Limits(max_batch=4, kv_tokens=ROOMY, refill=2))
    assert admission.next() == [0, 1, 2, 3]
    admission.left([0])
    assert admission.next() == []
    admission.left([1])
    assert admission.next() == [4, 5]
    admission.left([2])
    assert admission.next() == [6], "the last one waits for nobody"


def test_an_admission_is_a_bounded_prefill() -> None:
    long = PREFILL_CHUNK_TOKENS - 10
    _, admission = make([long, long, 5], 2, Limits(max_batch=99, kv_tokens=ROOMY))
    assert admission.next() == [0, 1], "a known prompt costs nothing"
    assert admission.next() == [2, 3, 4, 5]


def test_memory_bounds_what_runs_together() -> None:
    # Rows of 5 + 10 tokens, and 5 for each prompt held for rows to come.
    _, admission = make([5, 5], 4, Limits(max_batch=99, kv_tokens=65))
    assert admission.next() == [0, 1, 2, 3]
    admission.left([0, 1])
    assert admission.next() == [4, 5]


def test_shared_prompts_count_once() -> None:
    limits = Limits(max_batch=99, kv_tokens=100 + 4 * 10)
    _, expanded = make([100], 4, limits)
    _, shared = make([100], 4, limits, shared=True)
    assert expanded.next() == [0]
    assert shared.next() == [0, 1, 2, 3]


def test_a_sample_that_fits_nowhere_runs_alone() -> None:
    _, admission = make([50], 2, Limits(max_batch=99, kv_tokens=20))
    assert admission.next() == [0]
    assert admission.next() == []
    admission.left([0])
    assert admission.next() == [1]


def test_a_prompt_is_freed_when_nothing_needs_it_any_more() -> None:
    _, admission = make([5, 5], 2, Limits(max_batch=3, kv_tokens=ROOMY))
    admission.next()
    assert admission.freed() == [0], "rows have copies of their own"
    assert admission.freed() == []
    admission.left([0])
    admission.next()
    assert admission.freed() == [1]


def test_a_shared_prompt_is_freed_with_its_last_reader() -> None:
    _, admission = make([5, 5], 2, Limits(max_batch=3, kv_tokens=ROOMY), shared=True)
    admission.next()
    admission.left([0])
    assert admission.next() == [3]
    assert admission.freed() == []
    admission.left([1])
    assert admission.freed() == [0]


def test_continued_samples_count_their_tokens_as_prefill() -> None:
    tasks = [
        SampleTask(id="", prompt=0, seed=n, max_tokens=2000, tokens=[1] * 600) for n in range(3)
    ]
    request = make_request("", [[1] * 5], tasks)
    admission = queued(request, Limits(99, ROOMY))
    assert admission.next() == [0]
    assert admission.next() == [1]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 3000),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_everyone_is_admitted_once_within_the_bounds(
    lengths: list[int], group: int, max_batch: int, kv_tokens: int, shared: bool, random: object
) -> None:
    limits = Limits(max_batch, kv_tokens, refill=2)
    request, admission = make(lengths, group, limits, shared=shared)
    running: list[int] = []
    seen: list[int] = []
    while admission.waiting or running:
        admitted = admission.next()
        assert admitted or running, "nothing runs and nobody is admitted"
        running += admitted
        seen += admitted
        assert len(running) <= max_batch
        prompts = [len(request.prompts[request.samples[sample].prompt]) for sample in running]
        held = 10 * len(running) + (0 if shared else sum(prompts))
        assert len(running) == 1 or held <= kv_tokens
        leaving = running.pop(random.randrange(len(running)))  # type: ignore[attr-defined]
        admission.left([leaving])
    assert seen == list(range(len(request.samples)))


def test_samples_that_join_queue_up_and_widen_what_is_reserved() -> None:
    limits = Limits(max_batch=9, kv_tokens=100)
    roster = Roster.of(make_request("", [[1] * 5], make_tasks(1, 2, 10)))
    admission = Admission(roster, limits, shared=False)
    admission.join([0, 1])
    assert admission.next() == [0, 1]
    roster.prompts.append([1] * 20)
    roster.samples.extend(
        SampleTask(id="", prompt=1, seed=n, max_tokens=15, tokens=[1] * 3) for n in range(2)
    )
    admission.join([2, 3])
    assert admission.waiting == [2, 3]
    assert admission.next() == [], "three rows of 35 tokens do not fit"
    admission.left([0])
    assert admission.next() == [2]


def test_who_waits_can_be_withdrawn() -> None:
    _, admission = make([5, 5, 5], 2, Limits(max_batch=2, kv_tokens=ROOMY))
    assert admission.next() == [0, 1]
    assert admission.withdraw([0, 2, 5]) == [2, 5], "what runs is no concern of the queue"
    assert admission.waiting == [3, 4]
    assert admission.withdraw([2]) == []
    admission.left([0, 1])
    assert admission.next() == [3, 4]


def test_a_prompt_goes_with_the_last_sample_that_is_withdrawn() -> None:
    _, admission = make([5], 3, Limits(max_batch=2, kv_tokens=ROOMY))
    assert admission.next() == [0, 1]
    assert admission.freed() == [], "it is kept for the third"
    admission.withdraw([2])
    assert admission.freed() == [0]


@given(st.data(), st.booleans(), st.integers(1, 6), st.integers(30, 400))
def test_whoever_comes_and_goes_memory_is_kept_to(
    data: st.DataObject, shared: bool, max_batch: int, kv_tokens: int
) -> None:
    """Samples join, are withdrawn, released and end; the prompts held are those that are needed."""
    roster = Roster.of(make_request("", [], []))
    limits = Limits(max_batch, kv_tokens, refill=2)
    admission = Admission(roster, limits, shared=shared)
    waiting: list[int] = []
    running: list[int] = []
    held: set[int] = set()
    ended = 0
    for _ in range(data.draw(st.integers(1, 12))):
        sizes = data.draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=3))
        for prompt, max_tokens in sizes:
            roster.prompts.append([1] * prompt)
            known = data.draw(st.integers(0, len(roster.prompts) - 1))
            task = SampleTask(id="", prompt=known, seed=0, max_tokens=max_tokens)
            roster.samples.append(task)
        new = range(len(roster.samples) - len(sizes), len(roster.samples))
        admission.join(new)
        waiting += new
        admitted = admission.next()
        assert admitted == waiting[: len(admitted)]
        assert admitted or running or not waiting
        waiting = waiting[len(admitted) :]
        running += admitted
        held |= {roster.samples[sample].prompt for sample in admitted}
        assert len(running) <= max_batch
        if admitted and len(running) > 1:
            tasks = [roster.samples[sample] for sample in running]
            prompts = [t.prompt for t in tasks]
            rows = sum(t.max_tokens for t in tasks)
            read = set(prompts) if shared else prompts
            assert rows + sum(len(roster.prompts[prompt]) for prompt in read) <= kv_tokens
        some = data.draw(st.sets(st.sampled_from([*waiting, *running]))) if running else set()
        gone = admission.withdraw(some)
        assert gone == [sample for sample in waiting if sample in some]
        leaving = [sample for sample in running if sample in some]
        admission.left(leaving)
        ended += len(gone) + len(leaving)
        waiting = [sample for sample in waiting if sample not in some]
        running = [sample for sample in running if sample not in some]
        assert admission.waiting == waiting
        held -= set(admission.freed())
        needing = [*waiting, *running] if shared else waiting
        needed = {roster.samples[sample].prompt for sample in needing}
        assert held <= needed
        assert {roster.samples[s].prompt for s in running} <= held or not shared
    assert ended + len(waiting) + len(running) == len(roster.samples)
