"""The quick start with a longer tail: its task, of up to 25 items, and its policy used to them.

    python -m benchmarks.long_tail     writes benchmarks/long_tail_model/ again (a few minutes)

Answers of the quick start have 10 to 50 tokens, 20 on average. Here a step's problems have 1 to 25
items (5 tokens each), drawn so that the mean answer is an eighth of the longest, in every step. The
quick start's policy has never seen more than 10 items and breaks off; ``main`` teaches it, for some
hundred steps and with the quick start's careless teacher, to go on to the end.
"""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.quickstart.task import Item, answer_of, corrupted_answer, prompt_of

MODEL = Path(__file__).resolve().parent / "long_tail_model"
MOST_ITEMS = 25
MAX_TOKENS = 5 * MOST_ITEMS + 7
"""Room for the longest answer and for a small slip."""

_STEPS, _BATCH, _LEARNING_RATE = 800, 20, 1e-3
_CORRUPTION = 0.25
_ITEM_RANGES = ((1, 6), (6, 11), (12, 17), (18, 25))


def draw_items(rng: random.Random, count: int) -> list[Item]:
    first = rng.randrange(len(string.ascii_lowercase) - count + 1)
    letters = string.ascii_lowercase[first : first + count]
    return [(letter, rng.randrange(10)) for letter in letters]


def item_counts(prompts: int) -> list[int]:
    """Items of a step's problems: ``MOST_ITEMS`` once, and quantiles of an exponential as wide as
    keeps the mean at an eighth of that (or as near as one item the least allows)."""

    def counts(mean: float) -> list[int]:
        quantiles = [(n + 0.5) / (prompts - 1) for n in range(prompts - 1)]
        drawn = [round(-math.log(1 - q) * mean) for q in quantiles]
        return [*(min(max(count, 1), MOST_ITEMS) for count in drawn), MOST_ITEMS]

    means = [n / 20 for n in range(20 * MOST_ITEMS)]
    return max(
        (c for mean in means if sum(c := counts(mean)) <= prompts * MOST_ITEMS / 8),
        key=sum,
        default=counts(0.0),
    )


def rows(steps: int, prompts: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Data of ``steps`` steps, in the order in which they are to be used."""
    rng = random.Random(seed)
    for _ in range(steps):
        counts = item_counts(prompts)
        rng.shuffle(counts)
        yield from (row(draw_items(rng, count)) for count in counts)


def even_rows(steps: int, prompts: int, items: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Data whose answers all have ``5 * items`` tokens."""
    rng = random.Random(seed)
    for _ in range(steps * prompts):
        yield row(draw_items(rng, items))


def row(items: list[Item]) -> dict[str, str]:
    return {"prompt": prompt_of(items), "answer": answer_of(items)}


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from benchmarks.models import QUICKSTART

    torch.set_num_threads(1)
    rng = random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART)
    model = AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(_STEPS):
        warmup = min(1.0, (step + 1) / 20)
        for group in optimizer.param_groups:
            group["lr"] = warmup * _LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / _STEPS))
        loss = _loss(model, tokenizer, rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {_STEPS}, loss {loss.item():.3f}", flush=True)
    model.save_pretrained(MODEL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = json.loads((QUICKSTART / name).read_text())
        (MODEL / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _loss(model: Any, tokenizer: Any, rng: random.Random) -> Any:
    """Of one batch of imitation; its answers are about as long as each other, to save padding."""
    import torch
    from torch.nn.functional import cross_entropy

    bounds = rng.choice(_ITEM_RANGES)
    sequences = []
    for _ in range(_BATCH):
        items = draw_items(rng, rng.randint(*bounds))
        prompt = prompt_of(items)
        text = prompt + corrupted_answer(items, _CORRUPTION, rng)
        sequences.append(([*tokenizer(text).input_ids, tokenizer.eos_token_id], len(prompt)))
    longest = max(len(ids) for ids, _ in sequences)
    tokens = torch.full((_BATCH, longest), tokenizer.pad_token_id)
    labels = torch.full((_BATCH, longest), -100)
    for i, (ids, start) in enumerate(sequences):
        tokens[i, : len(ids)] = torch.tensor(ids)
        labels[i, start : len(ids)] = torch.tensor(ids[start:])
    logits = model(input_ids=tokens).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


if __name__ == "__main__":
    main()
