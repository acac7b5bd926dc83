"""A sequence-classification reward model: the first (and only) logit of a prompt with its response.

Chat prompts go through the tokenizer's chat template, plain ones are prompt + completion with the
tokenizer's own special tokens. The only file of this function that needs torch and transformers.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from functions.reward.process import CallCancelled, Cancelled
from functions.reward.scorer import Samples, fault
from functions.reward.scores import BadScore, to_scores
from rlhfless.errors import UserError
from rlhfless.messages import RewardFunction

TOKENS_PER_BATCH = 8192
"""Padded tokens of one forward pass; never changes the result beyond rounding."""


class ModelScorer:
    """See ``Scorer``. Loads at once. ``accelerator`` as in ``FunctionConfig``: float32 on ``cpu``,
    the saved type on a GPU. ``threads`` bounds torch's threads on CPU."""

    def __init__(
        self,
        function: RewardFunction,
        accelerator: str,
        threads: int,
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        torch.set_num_threads(threads)
        self._function = function
        self._device = torch.device("cpu" if accelerator == "cpu" else "cuda")
        self._tokens_per_batch = tokens_per_batch
        self._turn = threading.Lock()
        self._tokenizer, self._model = self._load()

    def score(self, samples: Samples, cancelled: Cancelled) -> list[float | None]:
        rows = self._tokenize(samples)
        logits: list[float] = [0.0] * len(rows)
        with self._turn:
            for batch in batches([len(row) for row in rows], self._tokens_per_batch):
                if cancelled():
                    raise CallCancelled
                values = self._forward([rows[i] for i in batch])
                for i, value in zip(batch, values, strict=True):
                    logits[i] = value
        try:
            return to_scores(logits, len(samples))
        except BadScore as error:
            raise fault(
                self._function, samples, f"returned {error}", sample=error.sample
            ) from error

    def close(self) -> None:
        pass

    def _load(self) -> tuple[Any, Any]:
        name, path = self._function.name, self._function.target
        dtype: Any = torch.float32 if self._device.type == "cpu" else "auto"
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model, loading = AutoModelForSequenceClassification.from_pretrained(
                path, dtype=dtype, output_loading_info=True
            )
        except (ImportError, OSError, RuntimeError, ValueError, SafetensorError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(
                f"reward {name!r}: cannot load the model {path}: {first}",
                hint="give a folder or Hub name of a sequence-classification model with tokenizer",
            ) from error
        if loading["missing_keys"]:
            raise UserError(
                f"reward {name!r}: {path} is no trained reward model: it lacks "
                f"{', '.join(sorted(loading['missing_keys'])[:3])}",
                hint="a reward model is saved by AutoModelForSequenceClassification",
            )
        if model.config.num_labels != 1:
            raise UserError(
                f"reward {name!r}: {path} has {model.config.num_labels} labels, "
                "and a reward model has 1",
                hint="for a classifier, write a Python reward that makes one number of its labels",
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            raise UserError(f"reward {name!r}: the tokenizer of {path} has no padding token")
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return tokenizer, model.to(self._device).eval()

    def _tokenize(self, samples: Samples) -> list[list[int]]:
        request = samples.request
        limit = self._max_tokens()
        rows: list[list[int]] = []
        for index, (prompt, completion) in enumerate(
            zip(request.prompts, request.completions, strict=True)
        ):
            if isinstance(prompt, str) and isinstance(completion, str):
                row = self._tokenizer(prompt + completion)["input_ids"]
            else:
                row = self._tokenizer(
                    self._chat_text(_messages(prompt, "user"), _messages(completion, "assistant")),
                    add_special_tokens=False,
                )["input_ids"]
            if not row or len(row) > limit:
                what = f"takes 1 to {limit} tokens and cannot score {len(row)}"
                raise fault(self._function, samples, what, sample=index, relation="of")
            rows.append(row)
        return rows

    def _chat_text(self, prompt: list[dict[str, Any]], completion: list[dict[str, Any]]) -> str:
        if self._tokenizer.chat_template is None:
            raise UserError(
                f"reward {self._function.name!r}: the tokenizer of {self._function.target} has no "
                "chat template, and the dataset's prompts are chats"
            )
        text: str = self._tokenizer.apply_chat_template(prompt + completion, tokenize=False)
        return text

    def _max_tokens(self) -> int:
        config = self._model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None) or sys.maxsize
        return int(min(self._tokenizer.model_max_length, positions))

    @torch.inference_mode()
    def _forward(self, rows: list[list[int]]) -> list[float]:
        """First logits of right-padded rows, ``[batch]``."""
        width = max(map(len, rows))
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        output = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device))
        values: list[float] = output.logits[:, 0].float().tolist()
        return values


def batches(lengths: list[int], tokens_per_batch: int) -> list[list[int]]:
    """Indices in batches of like length whose padded size stays within the limit (or single)."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    result: list[list[int]] = []
    for index in order:  # ascending: the newcomer is the longest of its batch
        if result and lengths[index] * (len(result[-1]) + 1) <= tokens_per_batch:
            result[-1].append(index)
        else:
            result.append([index])
    return result


def _messages(value: str | list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value
