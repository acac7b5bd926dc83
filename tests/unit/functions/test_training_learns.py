"""The whole loop on a task of one token: the reward rises, under every algorithm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from functions.training.learner import Learner
from functions.training.update import Update
from rlhfless.batches import Batch
from rlhfless.messages import Algorithm, BatchRef, CallInfo, ModelRef, TrainRequest
from tests.support.training import SETTINGS

GROUPS, SIZE = 8, 8


def sample(learner: Learner, rng: np.random.Generator) -> Batch:
    """One token a response; right is a letter token (ids 4 to 29), which few of the first are."""
    prompts = rng.integers(4, 64, (GROUPS, 3))
    with torch.no_grad():
        logits = learner.policy.model(torch.from_numpy(prompts)).logits[:, -1]
    tokens = torch.multinomial(logits.softmax(-1), SIZE, replacement=True)
    logprobs = logits.log_softmax(-1).gather(1, tokens).flatten()
    responses = tokens.flatten().numpy().astype(np.int32)
    ones = np.ones(GROUPS * SIZE, np.int32)
    return Batch(
        prompt_tokens=np.repeat(prompts, SIZE, 0).flatten().astype(np.int32),
        prompt_lengths=3 * ones,
        response_tokens=responses,
        response_lengths=ones,
        rollout_logprobs=logprobs.numpy(),
        reference_logprobs=logprobs.numpy(),
        rewards=((responses >= 4) & (responses < 30)).astype(np.float32),
        groups=np.repeat(np.arange(GROUPS, dtype=np.int32), SIZE),
        truncated=np.zeros(GROUPS * SIZE, np.bool_),
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(name="grpo", advantage="group_norm", kl_coefficient=0.01),
        Algorithm(name="dr_grpo", advantage="group_mean", loss_aggregation="sequence_sum"),
        Algorithm(name="rloo", advantage="rloo"),
        Algorithm(
            name="reinforce_pp",
            advantage="batch_norm",
            kl_coefficient=0.01,
            kl_placement="reward",
        ),
        Algorithm(name="ppo", advantage="gae", entropy_coefficient=0.001, dual_clip=3.0),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_the_reward_rises(tiny_model_dir: Path, algorithm: Algorithm) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    request = TrainRequest(
        call=CallInfo(id="c", job="j", step=0, deadline_s=1, store="memory://"),
        model=ModelRef(path=str(tiny_model_dir), job="j", version=0),
        batch=BatchRef(name="b", sha256="", num_samples=0),
        algorithm=algorithm,
        optimization=msgspec.structs.replace(SETTINGS, learning_rate=2e-3),
        seed=0,
        max_tokens=1,
    )
    learner = Learner(request, torch.device("cpu"), 0)
    rewards = []
    for step in range(30):
        batch = sample(learner, rng)
        rewards.append(float(batch.rewards.mean()))
        model = msgspec.structs.replace(request.model, version=step)
        for _ in Update(
            learner, msgspec.structs.replace(request, model=model, seed=step), batch
        ).run():
            pass
    assert np.mean(rewards[:3]) < 0.6
    assert np.mean(rewards[-5:]) > 0.85, rewards
