"""The prompts of a simulated job: those of its dataset, or made up where there is none.

Of a prompt a simulation needs how many tokens it has and which it shares with others from the
start, for these decide about prefill, caches and room. Real text becomes tokens by the model's own
tokenizer where its folder is there and the data small enough to wait for; otherwise a token stands
for so many bytes of text, and its number is a hash of them, so that texts with a common start are
tokens with a common start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.dataset import Row, load_rows
from controller.job import Prompt
from controller.tokenizer import fitting
from rlhfless.errors import UserError
from rlhfless.messages import Prompt as PromptText
from rlhfless.spec import DatasetSpec, JobSpec
from simulator.model_shape import ModelShape
from simulator.random_numbers import hashed, normal, uniform

BYTES_PER_TOKEN = 4
"""Of text, where no tokenizer tells: what common vocabularies come to in English."""
TOKENIZED_BYTES = 2_000_000
"""Of text that is tokenized whole: about a second. Of more, a share tells the bytes of a token."""
_SAMPLED_BYTES = 100_000
_PROMPT_LENGTHS, _TOKENS = 11, 12
"""Keys that keep random numbers apart."""
_MULTIPLIER = np.uint64(6364136223846793005)
"""Of a linear congruential generator (Knuth's MMIX); products wrap around."""


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of made-up prompts: lognormal with deviation ``spread`` of the logarithm (0: all the
    same) around ``median``, or without a median uniform, between ``low`` and ``high``; of them
    ``shared`` are common to all, from the start."""

    median: float | None
    spread: float
    low: int
    high: int
    shared: int = 0

    def draw(self, count: int, seed: int) -> NDArray[np.int64]:
        """``[count]`` tokens."""
        state = hashed(seed, _PROMPT_LENGTHS, np.arange(count, dtype=np.uint64))
        if self.median is None:
            drawn = self.low + uniform(state, 0) * (self.high + 1 - self.low)
        else:
            drawn = np.exp(np.log(self.median) + self.spread * normal(state, 0)) + 0.5
        lengths: NDArray[np.int64] = np.clip(drawn.astype(np.int64), self.low, self.high)
        return lengths


def read_prompts(
    spec: JobSpec, dataset: DatasetSpec, param: str, shape: ModelShape
) -> tuple[tuple[Prompt, ...], list[str]]:
    """The prompts of a dataset that is there, and what was assumed about their tokens.

    Raises ``UserError`` as a run would, for rows it cannot read and prompts that leave no room for
    a response.
    """
    rows = load_rows(dataset, param)
    tokens, assumed = _tokens(rows, spec.model.path, shape.vocabulary)
    kept = fitting(
        rows,
        tokens,
        context=shape.max_context or None,
        max_tokens=spec.rollout.max_tokens,
        overlong=dataset.overlong,
        param=param,
    )
    prompts = (Prompt(f"{param}/{i}", rows[i], tuple(found)) for i, found in kept.items())
    return tuple(prompts), assumed


def make_prompts(
    count: int, lengths: PromptLengths, param: str, shape: ModelShape, seed: int
) -> tuple[Prompt, ...]:
    """Prompts that differ right after what they share. ``param``: the spec path of the dataset
    they stand for."""
    digits = _digits(count, shape.vocabulary)
    drawn = np.maximum(lengths.draw(count, seed), lengths.shared + digits).tolist()
    state = hashed(seed, _TOKENS, np.arange(max(drawn), dtype=np.uint64))
    filler = tuple((state % np.uint64(shape.vocabulary)).tolist())
    shared, rest = filler[: lengths.shared], lengths.shared + digits
    prompts = []
    for index, length in enumerate(drawn):
        own = tuple(index // shape.vocabulary**place % shape.vocabulary for place in range(digits))
        text = f"made-up prompt {index} of {param}"
        # Slices of one tuple: its numbers exist once, however many prompts hold them.
        tokens = shared + own + filler[rest:length]
        prompts.append(Prompt(f"{param}/{index}", Row(text, {}, text), tokens))
    return tuple(prompts)


def _digits(count: int, base: int) -> int:
    """Tokens that tell so many prompts apart."""
    digits = 1
    while base**digits < count:
        digits += 1
    return digits


def _tokens(rows: Sequence[Row], model: str, vocabulary: int) -> tuple[list[list[int]], list[str]]:
    """The tokens of each row's prompt, and what was assumed."""
    texts = [_render(row.prompt) for row in rows]
    path = os.path.join(model, "tokenizer.json")
    if not os.path.isfile(path):
        assumed = f"a token stands for {BYTES_PER_TOKEN} bytes of a prompt: no tokenizer of {model}"
        return _pseudo_tokens(texts, BYTES_PER_TOKEN, vocabulary), [f"{assumed} is here"]
    # A chat template writes its special tokens itself; plain text gets the tokenizer's own.
    plain = all(isinstance(row.prompt, str) for row in rows)
    total = sum(map(len, texts))
    if total <= TOKENIZED_BYTES:
        return _real_tokens(texts, path, plain), []
    some = texts[:: -(-total // _SAMPLED_BYTES)]
    found = _real_tokens(some, path, plain)
    width = max(1, round(sum(len(t.encode()) for t in some) / max(1, sum(map(len, found)))))
    assumed = (
        f"a token stands for {width} bytes of a prompt, as it does in {len(some)} of the "
        f"{len(texts)} prompts that were tokenized"
    )
    return _pseudo_tokens(texts, width, vocabulary), [assumed]


def _render(prompt: PromptText) -> str:
    """Chat messages as one text, roughly as chat templates have them."""
    if isinstance(prompt, str):
        return prompt
    turns = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in prompt]
    return "".join([*turns, "<|im_start|>assistant\n"])


def _real_tokens(texts: Sequence[str], path: str, plain: bool) -> list[list[int]]:
    """By a model's tokenizer, without what transformers takes to start."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing narrower
        problem = f"cannot load a tokenizer from {path}: {error}"
        raise UserError(problem, param="model.path") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = tokenizer.encode_batch_fast(texts, add_special_tokens=plain)
    return [encoding.ids for encoding in found]


def _pseudo_tokens(texts: Sequence[str], width: int, vocabulary: int) -> list[list[int]]:
    """A number below ``vocabulary`` for every ``width`` bytes of text."""
    padded = [data + bytes(-len(data) % width) for data in map(str.encode, texts)]
    chunks = np.frombuffer(b"".join(padded), dtype=np.uint8).reshape(-1, width)
    numbers = np.zeros(len(chunks), dtype=np.uint64)
    for place in range(width):
        numbers = numbers * _MULTIPLIER + chunks[:, place]
    tokens = (numbers % np.uint64(vocabulary)).tolist()
    ends = np.cumsum([len(data) // width for data in padded]).tolist()
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]
