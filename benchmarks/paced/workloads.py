"""Recorded workloads: prompts, and how long each one's responses are.

Lengths have a long tail: three quarters of the prompts get answers about as long as the median, the
rest up to 25 times that, a twentieth of the longest being the 75th percentile (as the responses of
reasoning models under training are). A prompt's responses resemble each other, and itself the next
time. Every step has prompts of all lengths: the same quantiles, each time in another order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.paced.model import EOS, FIRST_WORD, VOCABULARY, WORKLOAD_FILE, Workload, prompt_name

LONGEST_TO_MEDIAN = 25
SCATTER = 0.15
DRIFT = 0.1


@dataclass(frozen=True)
class Recipe:
    """``prompts`` of a step and ``group`` samples of each; ``steps`` steps' worth of prompts make
    an epoch. A prompt has ``own_tokens`` (from, to) after ``system_tokens`` that all begin with;
    responses have up to ``longest`` tokens."""

    name: str
    prompts: int
    group: int
    own_tokens: tuple[int, int]
    system_tokens: int = 0
    longest: int = 400
    steps: int = 2
    seed: int = 0

    @property
    def context(self) -> int:
        return self.system_tokens + self.own_tokens[1] + self.longest


@dataclass(frozen=True)
class Recorded:
    """``model``: the folder that stands for the model; ``data``: the prompts."""

    model: Path
    data: Path


def quantile_means(recipe: Recipe) -> list[float]:
    """Mean lengths of a step's prompts, ascending. The body rises from 0.8 of the median to 1.1 of
    it at the 75th percentile, the tail from there to the longest by equal factors."""
    median = recipe.longest / LONGEST_TO_MEDIAN
    means = []
    for i in range(recipe.prompts):
        q = (i + 0.5) / recipe.prompts
        if q <= 0.75:
            means.append(median * (0.8 + 0.4 * q))
        else:
            means.append(1.1 * median * (LONGEST_TO_MEDIAN / 1.1) ** ((q - 0.75) / 0.25))
    return means


def record(recipe: Recipe, folder: Path) -> Recorded:
    """Write a workload to ``folder``."""
    rng = random.Random(recipe.seed)
    system = _words(rng, recipe.system_tokens)
    means: dict[str, float] = {}
    prompts: list[list[int]] = []
    for _ in range(recipe.steps):
        lengths = quantile_means(recipe)
        rng.shuffle(lengths)
        for mean in lengths:
            tokens = system + _words(rng, rng.randint(*recipe.own_tokens))
            prompts.append(tokens)
            means[prompt_name(tokens)] = mean
    recorded = Recorded(folder / "model", folder / "data.jsonl")
    recorded.model.mkdir(parents=True)
    workload = Workload(means, SCATTER, DRIFT, recipe.longest, recipe.context)
    (recorded.model / WORKLOAD_FILE).write_text(json.dumps(asdict(workload)))
    _write_tokenizer(recorded.model, recipe.context)
    with recorded.data.open("w") as file:
        file.writelines(line + "\n" for line in _rows(prompts))
    return recorded


def _rows(prompts: list[list[int]]) -> Iterator[str]:
    for tokens in prompts:
        yield json.dumps({"prompt": " ".join(map(_word, tokens))})


def _words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]


def _word(token: int) -> str:
    return f"w{token}"


def _write_tokenizer(folder: Path, context: int) -> None:
    """A word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<eos>": EOS, "<unk>": FIRST_WORD - 1}
    vocabulary |= {_word(token): token for token in range(FIRST_WORD, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    text = {"eos_token_id": EOS, "max_position_embeddings": context, "vocab_size": VOCABULARY}
    (folder / "config.json").write_text(json.dumps(text))
