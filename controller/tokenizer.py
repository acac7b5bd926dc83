"""Between text and tokens: prompts in, responses out.

Imports transformers, and torch only where a model asks for a tokenizer class of its own.
"""

from __future__ import annotations

import difflib
import json
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Self

from controller.dataset import Row
from rlhfless.errors import UserError
from rlhfless.spec import ModelSpec

Overlong = Literal["error", "drop", "truncate_left"]
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_LOADING = threading.Lock()
"""transformers imports its parts when they are first asked for, and cannot for two threads at once:
one of two jobs that start together would not find a class that is there."""


class PromptTokenizer:
    """The model's tokenizer, its chat template, and what its config says of ends and lengths."""

    def __init__(self, tokenizer: Any, eos_token_ids: list[int], context: int | None) -> None:
        self._tokenizer = tokenizer
        self._eos = eos_token_ids
        self._special = set(tokenizer.all_special_ids)
        self.context = context
        """Longest sequence the model takes, in tokens; None where its config does not say."""

    @classmethod
    def load(cls, model: ModelSpec) -> Self:
        """Raises ``UserError`` (param ``model.path``) if there is no tokenizer to load."""
        if _is_path(model.path) and not os.path.isdir(model.path):
            raise UserError(
                f"there is no model folder {model.path}{_nearest_folder(model.path)}",
                param="model.path",
            )
        try:
            with _LOADING:
                tokenizer = _load_tokenizer(model.path)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"cannot load a tokenizer from {model.path}: {reason}", param="model.path"
            ) from error
        if model.chat_template is not None:
            tokenizer.chat_template = model.chat_template
        config = _config(model.path, "config.json")
        generation = _config(model.path, "generation_config.json")
        ends: list[int] = []
        for value in (
            tokenizer.eos_token_id,
            generation.get("eos_token_id"),
            config.get("eos_token_id"),
        ):
            ends += value if isinstance(value, list) else [] if value is None else [value]
        context = config.get("max_position_embeddings") or config.get("n_positions")
        return cls(tokenizer, list(dict.fromkeys(ends)), context)

    def stop_token_ids(self, stop: Sequence[str]) -> list[int]:
        """Tokens that end a response: the model's own, and ``stop``, each a single token."""
        ids = list(self._eos)
        for index, text in enumerate(stop):
            tokens = self.tokens_of(text)
            if len(tokens) != 1:
                raise UserError(
                    f"the stop text {text!r} is {len(tokens)} tokens; only a single token can stop",
                    param=f"rollout.stop.{index}",
                )
            ids += tokens
        if not ids:
            raise UserError(
                "the model names no end-of-sequence token",
                param="rollout.stop",
                hint="name the token that ends a response in rollout.stop",
            )
        return list(dict.fromkeys(ids))

    def encode(
        self, rows: Sequence[Row], *, max_tokens: int, overlong: Overlong, param: str
    ) -> Mapping[int, list[int]]:
        """Row number -> prompt tokens. ``overlong`` decides about prompts that leave no room for
        ``max_tokens`` in the context; dropped rows are missing from the result."""
        return fitting(
            rows,
            self._encode(rows, param),
            context=self.context,
            max_tokens=max_tokens,
            overlong=overlong,
            param=param,
        )

    def tokens_of(self, text: str) -> list[int]:
        """Tokens of a piece of text, with nothing added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, responses: Sequence[Sequence[int]], stop: Collection[int] = ()) -> list[str]:
        """Texts of responses, without special tokens and without a last token that is in ``stop``
        (the token a response ended with is no part of what it says)."""
        if not responses:
            return []
        kept = [
            [t for t in (r[:-1] if r and r[-1] in stop else r) if t not in self._special]
            for r in responses
        ]
        texts: list[str] = self._tokenizer.batch_decode(
            kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return texts

    def piece(self, token: int) -> str:
        """A token by itself as text; of one that is part of a character, U+FFFD."""
        text: str = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        name: str = self._tokenizer.convert_ids_to_tokens(token) or ""
        # SentencePiece takes the space before a word for the beginning of the text.
        return f" {text}" if name.startswith("▁") and not text.startswith(" ") else text

    def _encode(self, rows: Sequence[Row], param: str) -> list[list[int]]:
        texts: list[str] = []
        plain: list[bool] = []
        for row in rows:
            plain.append(isinstance(row.prompt, str))
            texts.append(row.prompt if isinstance(row.prompt, str) else self._render(row, param))
        tokens: list[list[int]] = [[] for _ in texts]
        # A chat template writes its special tokens itself; plain text gets the tokenizer's own.
        for is_plain in (True, False):
            chosen = [i for i, p in enumerate(plain) if p is is_plain]
            if chosen:
                ids = self._tokenizer([texts[i] for i in chosen], add_special_tokens=is_plain)[
                    "input_ids"
                ]
                for i, found in zip(chosen, ids, strict=True):
                    tokens[i] = found
        return tokens

    def _render(self, row: Row, param: str) -> str:
        from jinja2 import TemplateError

        if self._tokenizer.chat_template is None:
            raise UserError(
                "the prompts are chat messages, but the tokenizer has no chat template",
                param="model.chat_template",
                hint="set model.chat_template, or give prompts as plain text",
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                row.prompt, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise UserError(
                f"{row.where}: the chat template refuses the prompt: {error}", param=param
            ) from error
        return text


def fitting(
    rows: Sequence[Row],
    encoded: Sequence[list[int]],
    *,
    context: int | None,
    max_tokens: int,
    overlong: Overlong,
    param: str,
) -> Mapping[int, list[int]]:
    """See ``PromptTokenizer.encode``; ``encoded`` are the rows' tokens, whole."""
    room = None if context is None else context - max_tokens
    if room is not None and room < 1:
        raise UserError(
            f"rollout.max_tokens {max_tokens} fills the model's context of {context}",
            param="rollout.max_tokens",
        )
    fit: dict[int, list[int]] = {}
    for number, (row, tokens) in enumerate(zip(rows, encoded, strict=True)):
        if not tokens:
            raise UserError(f"{row.where}: the prompt has no tokens", param=param)
        if room is not None and len(tokens) > room:
            if overlong == "drop":
                continue
            if overlong == "error":
                raise UserError(
                    f"{row.where}: a prompt of {len(tokens)} tokens and responses of up to "
                    f"{max_tokens} do not fit the model's context of {context}",
                    param=f"{param}.overlong",
                    hint="lower rollout.max_tokens, or set overlong to drop or truncate_left",
                )
            tokens = tokens[-room:]
        fit[number] = tokens
    if not fit:
        raise UserError("every prompt is too long for the context", param=f"{param}.overlong")
    return fit


def _load_tokenizer(path: str) -> Any:
    """``AutoTokenizer``, without what it imports (torch, a second) where the class is generic."""
    declared = _config(path, "tokenizer_config.json").get("tokenizer_class")
    if declared in _GENERIC_CLASSES:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def _config(path: str, name: str) -> dict[str, Any]:
    """A JSON file of the model, from its folder or the Hub's cache; empty where there is none."""
    from transformers.utils.hub import cached_file

    found = cached_file(
        path,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return {}
    try:
        with open(found, encoding="utf-8") as file:
            values: dict[str, Any] = json.load(file)
    except ValueError as error:
        raise UserError(f"{found} is not JSON: {error}", param="model.path") from error
    return values


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _nearest_folder(path: str) -> str:
    parent, base = os.path.split(path.rstrip("/"))
    try:
        names = os.listdir(parent or ".")
    except OSError:
        return ""
    close = difflib.get_close_matches(base, names, n=1)
    return f"; did you mean {os.path.join(parent, close[0])}?" if close else ""
