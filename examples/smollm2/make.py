"""Make the data of the SmolLM2 example: sums of two digits, asked in four ways, as chat prompts.

    python -m examples.smollm2.make [--out FOLDER]

A pair of digits is held out in every order and wording, so no evaluation sum is ever trained on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Any

SEED = 20
NUM_HELD_OUT_PAIRS = 11
WORDINGS = (
    "What is {a} + {b}?",
    "Calculate {a} + {b}.",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    out = parser.parse_args(argv).out
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("train", "eval"), make_rows(), strict=True):
        path = out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"wrote {len(rows)} prompts to {path}")


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on and rows to evaluate on."""
    rng = random.Random(SEED)
    pairs = list(itertools.combinations_with_replacement(range(1, 10), 2))
    rng.shuffle(pairs)
    held_out, kept = pairs[:NUM_HELD_OUT_PAIRS], pairs[NUM_HELD_OUT_PAIRS:]
    return rows_of(kept), rows_of(held_out)


def rows_of(pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    ordered = sorted({order for a, b in pairs for order in ((a, b), (b, a))})
    return [
        {
            "prompt": [{"role": "user", "content": wording.format(a=a, b=b)}],
            "answer": str(a + b),
        }
        for a, b in ordered
        for wording in WORDINGS
    ]


if __name__ == "__main__":
    main()
