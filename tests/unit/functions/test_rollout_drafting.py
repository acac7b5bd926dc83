"""Drafts for a batch, verified by an engine that is a list of what comes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from functions.rollout.drafting import MEASURED, Drafter

MEMORY = 1 << 21
LONGEST = 600


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
    """Runs scripted responses; a draft token is accepted where it is the script's next."""

    def __init__(self, drafter: Drafter, clock: Clock | None = None) -> None:
        self.drafter = drafter
        self.clock = clock
        self.iterations = self.drafted = self.accepted = 0
        self.longest_draft: list[int] = []
        self._shuffle = random.Random(0)

    def run(self, prompts: Sequence[list[int]], scripts: Sequence[list[int]]) -> None:
        rows = [(p, s, 0) for p, s in zip(prompts, scripts, strict=True)]
        drafts: list[list[int]] = [[] for _ in rows]
        while rows:
            sampled, left = [], []
            for (prompt, script, done), draft in zip(rows, drafts, strict=True):
                taken = 0
                while taken < len(draft) and draft[taken : taken + 1] == script[done + taken :][:1]:
                    taken += 1
                gained = script[done : done + taken + 1]
                sampled.append(gained)
                left.append((prompt, script, done + len(gained)))
                self.drafted += len(draft)
                self.accepted += taken
            if self.clock is not None:
                verified = len(rows) + sum(map(len, drafts))
                self.clock.now_s += 0.01 + 0.001 * verified
            self.iterations += 1
            running = [j for j, (_, script, done) in enumerate(left) if done < len(script)]
            self._shuffle.shuffle(running)  # rows change places, as in vLLM's batch
            rows = [left[j] for j in running]
            tokens = np.zeros((len(rows), LONGEST), np.int32)
            lengths = np.zeros(len(rows), np.int64)
            for i, (prompt, script, done) in enumerate(rows):
                text = prompt + script[:done]
                tokens[i, : len(text)], lengths[i] = text, len(text)
            drafts = self.drafter.propose([sampled[j] for j in running], lengths, tokens)
            assert len(drafts) == len(rows)
            self.longest_draft.append(max(map(len, drafts), default=0))


def text(seed: int, length: int = 200) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(5000) for _ in range(length)]


def test_nothing_to_go_by_means_hardly_a_draft() -> None:
    engine = Engine(Drafter(8, MEMORY, free=64))
    engine.run([text(1, 40)], [text(2)])
    assert engine.drafted == 0
    assert engine.iterations == 200


def test_an_earlier_response_to_the_same_prompt_is_drafted() -> None:
    engine = Engine(Drafter(8, MEMORY, free=64))
    engine.run([text(1, 40)], [text(2)])
    assert engine.accepted == 0
    engine.run([text(1, 40)], [text(2)])
    assert engine.accepted > 150
    assert engine.accepted > 0.9 * engine.drafted
    assert engine.iterations < 200 + 60


def test_siblings_that_run_at_the_same_time_draft_for_each_other() -> None:
    # The siblings agree where the text is the same, at other places in each.
    common = text(3, 150)
    scripts = [text(10 + i, 5 + 20 * i) + common for i in range(4)]
    engine = Engine(Drafter(8, MEMORY, free=64))
    engine.run([text(1, 40)] * 4, scripts)
    # They all but catch up with the first: it had a lead of 20, 40 and 60 tokens.
    assert engine.accepted > 110
    assert engine.iterations < 155 + 10


def test_what_a_row_repeats_of_its_own_is_drafted() -> None:
    engine = Engine(Drafter(8, MEMORY, free=64))
    engine.run([text(1, 40)], [[7, 8, 9] * 60])
    assert engine.accepted > 120


def test_a_row_that_departs_from_the_others_is_left_alone() -> None:
    engine = Engine(Drafter(8, MEMORY, free=4))
    lure = text(3)
    engine.run([text(1, 40)], [lure])
    before = engine.drafted
    # Every sixth token is another: what is drafted after four that agree is soon refused.
    script = [token if i % 6 else 9000 + i for i, token in enumerate(lure)]
    engine.run([text(1, 40)], [script])
    assert engine.drafted - before < len(script)


def test_fewer_drafts_in_a_fuller_batch() -> None:
    drafts = []
    for rows in (1, 4, 16, 64):
        engine = Engine(Drafter(8, 1 << 23, free=12))
        prompts = [text(100 + i, 40) for i in range(rows)]
        scripts = [text(500 + i, 100) for i in range(rows)]
        engine.run(prompts, scripts)
        engine.drafted = 0
        engine.longest_draft.clear()
        half = [script[:50] + text(700 + i, 20) for i, script in enumerate(scripts)]
        engine.run(prompts, half)
        drafts.append(max(engine.longest_draft[:3]))
    assert drafts == sorted(drafts, reverse=True)
    assert drafts[0] > drafts[-1]


def test_what_verification_costs_is_measured() -> None:
    clock = Clock()
    drafter = Drafter(8, MEMORY, clock=clock)
    engine = Engine(drafter, clock)
    for seed in range(3):
        scripts = [text(seed, 60 + 10 * i) for i in range(12)]
        engine.run([text(seed + 50, 30)] * 12, scripts)
    assert drafter._num_measured >= MEASURED
    assert 5 < drafter._free < 20  # 10 in truth


def test_no_draft_reaches_beyond_the_longest_sequence() -> None:
    drafter = Drafter(8, MEMORY, free=1000)
    tokens = np.tile(np.array([5, 6], np.int32), (1, 10))
    room = []
    for length in range(12, 21):
        drafts = drafter.propose([[int(tokens[0, length - 1])]], np.array([length]), tokens)
        room.append((length, len(drafts[0])))
    assert all(length + count <= 19 for length, count in room if count)
    assert any(count for _, count in room)


def test_rows_whose_prompt_is_still_being_run_get_none() -> None:
    drafter = Drafter(8, MEMORY, free=1000)
    tokens = np.tile(np.array([5, 6], np.int32), (2, 40))
    drafts = drafter.propose([[6], []], np.array([40, 20]), tokens)
    assert drafts[1] == []
    assert drafter.propose([], np.zeros(0, np.int64), tokens) == []
