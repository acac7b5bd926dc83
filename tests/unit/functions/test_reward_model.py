"""Reward models: a tiny random sequence classifier against its plain forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from functions.reward.model_scorer import ModelScorer, batches
from functions.reward.process import CallCancelled
from functions.reward.scorer import Samples
from rlhfless.errors import UserError
from rlhfless.messages import CallInfo, RewardFunction, RewardRequest

COMPLETIONS = ["a", "bcd " * 20, "e f", "ghijkl" * 7, "", "mn" * 50]


@pytest.fixture(scope="module")
def reward_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward-model")
    _save(folder, tiny_model_dir, num_labels=1)
    return folder


def _save(folder: Path, tiny_model_dir: Path, num_labels: int) -> None:
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(
        tiny_model_dir, num_labels=num_labels, tie_word_embeddings=False
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)


def _function(path: Path | str) -> RewardFunction:
    return RewardFunction(name="rm", kind="model", target=str(path))


def _samples(prompts: list[Any], completions: list[Any]) -> Samples:
    count = len(prompts)
    return Samples(
        RewardRequest(
            call=CallInfo(id="c", job="j", step=3, deadline_s=60, store="memory://"),
            functions=[],
            sample_ids=[f"s{i}" for i in range(count)],
            prompts=prompts,
            completions=completions,
            completion_ids=[[0]] * count,
        )
    )


def _never() -> bool:
    return False


def _reference(folder: Path, texts: list[str]) -> list[float]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [float(model(**tokenizer(text, return_tensors="pt")).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("tokens_per_batch", [1, 100, 8192])
def test_plain_texts_score_as_one_by_one(reward_dir: Path, tokens_per_batch: int) -> None:
    scorer = ModelScorer(_function(reward_dir), "cpu", 1, tokens_per_batch)
    prompts = [f"prompt {i}? " for i in range(len(COMPLETIONS))]
    scores = scorer.score(_samples(prompts, COMPLETIONS), _never)
    texts = [p + c for p, c in zip(prompts, COMPLETIONS, strict=True)]
    assert scores == pytest.approx(_reference(reward_dir, texts), rel=1e-4, abs=1e-5)
    assert len(set(scores)) == len(scores)


def test_chats_go_through_the_template(reward_dir: Path) -> None:
    prompt = [{"role": "user", "content": "hi?"}]
    completion = [{"role": "assistant", "content": "yo"}]
    scorer = ModelScorer(_function(reward_dir), "cpu", 1)
    scores = scorer.score(_samples([prompt, prompt], [completion, "yo"]), _never)
    expected = _reference(reward_dir, ["<user>hi?\n<assistant>yo\n"])[0]
    assert scores == pytest.approx([expected, expected], rel=1e-4)


def test_a_chat_without_template_is_explained(reward_dir: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(reward_dir)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(reward_dir).save_pretrained(tmp_path)
    scorer = ModelScorer(_function(tmp_path), "cpu", 1)
    with pytest.raises(UserError, match="has no chat template"):
        scorer.score(_samples([[{"role": "user", "content": "hi"}]], ["yo"]), _never)


def test_a_text_longer_than_the_context_names_the_sample(reward_dir: Path) -> None:
    scorer = ModelScorer(_function(reward_dir), "cpu", 1)
    with pytest.raises(UserError) as caught:
        scorer.score(_samples(["p", "p"], ["ok", "x" * 300]), _never)
    assert "reward 'rm' takes 1 to 256 tokens and cannot score 301 of sample 's1'" in str(
        caught.value
    )


def test_a_call_no_longer_wanted_ends(reward_dir: Path) -> None:
    scorer = ModelScorer(_function(reward_dir), "cpu", 1)
    with pytest.raises(CallCancelled):
        scorer.score(_samples(["p"], ["c"]), lambda: True)


def test_numbers_that_overflowed_name_the_sample(reward_dir: Path) -> None:
    scorer = ModelScorer(_function(reward_dir), "cpu", 1)
    with torch.no_grad():
        scorer._model.score.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="reward 'rm' returned nan on sample 's0'"):
        scorer.score(_samples(["p"], ["c"]), _never)


def test_models_that_are_no_reward_models(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward 'rm': cannot load the model .*/nowhere"):
        ModelScorer(_function(tmp_path / "nowhere"), "cpu", 1)
    with pytest.raises(UserError, match=r"no trained reward model: it lacks score\.weight"):
        ModelScorer(_function(tiny_model_dir), "cpu", 1)
    _save(tmp_path, tiny_model_dir, num_labels=3)
    with pytest.raises(UserError, match="has 3 labels, and a reward model has 1"):
        ModelScorer(_function(tmp_path), "cpu", 1)


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        ([], 10, []),
        ([3, 1, 2], 6, [[1, 2], [0]]),
        ([50], 10, [[0]]),
        ([5, 5, 5, 5], 10, [[0, 1], [2, 3]]),
    ],
)
def test_batches_sort_by_length_and_stay_within_the_limit(
    lengths: list[int], limit: int, expected: list[list[int]]
) -> None:
    assert batches(lengths, limit) == expected
