"""TRL's ``GRPOTrainer`` as a process that takes a step whenever it is told to.

    python -m benchmarks.trl_peer CASE.json

Lines in: ``{"threads": n}``, one a step. Lines out: ``{"ready": true}`` once, and one ``Step``
after each step. The trainer's own output goes to stderr. What the trainer is told follows from the
job spec of our side, so that both do the same work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO


@dataclass
class Step:
    """``lengths`` of the responses in tokens, the end-of-sequence token included; ``seconds`` of
    the whole step; ``threads`` of torch it ran with."""

    threads: int = 0
    seconds: float = 0.0
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Gate:
    """Holds the trainer at the beginning of each step until a line comes in."""

    def __init__(self, lines_in: TextIO, lines_out: TextIO) -> None:
        self._in, self._out = lines_in, lines_out
        self._start = 0.0
        self.step: Step | None = None

    def say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def pass_through(self) -> None:
        """End the step there was, and begin one when told to; the process ends with its input."""
        import torch

        if self.step is not None:
            self.step.seconds = time.perf_counter() - self._start
            self.say(asdict(self.step))
        line = self._in.readline()
        if not line:
            self._out.close()
            os._exit(0)  # in the middle of a training loop that nobody wants to see the end of
        threads = int(json.loads(line)["threads"])
        torch.set_num_threads(threads)
        self.step = Step(threads)
        self._start = time.perf_counter()

    def recording(self, reward: Callable[..., list[float]]) -> Callable[..., list[float]]:
        def recorded(**arguments: Any) -> list[float]:
            assert self.step is not None
            rewards = reward(**arguments)
            self.step.rewards += rewards
            self.step.lengths += [len(ids) for ids in arguments["completion_ids"]]
            return rewards

        recorded.__name__ = reward.__name__
        return recorded


def train(case: dict[str, Any], gate: Gate) -> None:
    """Train until the input ends. ``case``: ``spec`` (a job spec as JSON) and ``steps``."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from functions.training.policy import top_parts
    from rlhfless.spec import JobSpec

    spec = JobSpec.model_validate(case["spec"])
    training, algorithm, rollout = spec.training, spec.algorithm, spec.rollout
    model = AutoModelForCausalLM.from_pretrained(spec.model.path, dtype=torch.float32)
    if training.trainable == "top_layers":
        model.requires_grad_(False)
        for part in top_parts(model.base_model, training.top_layers):
            part.requires_grad_(True)
    with open(spec.dataset.path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    samples = training.prompts_per_step * algorithm.group_size
    config = GRPOConfig(
        output_dir=case["folder"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        max_steps=case["steps"] * training.minibatches,
        per_device_train_batch_size=samples // training.minibatches,
        steps_per_generation=training.minibatches,
        num_generations=algorithm.group_size,
        shuffle_dataset=False,
        max_completion_length=rollout.max_tokens,
        temperature=rollout.temperature,
        top_k=0,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.schedule,
        weight_decay=training.weight_decay,
        max_grad_norm=training.grad_clip,
        beta=algorithm.kl.coefficient,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        loss_type="dapo",  # a mean over the tokens of the minibatch, as our token_mean
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=spec.seed,
    )

    class Gated(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step % training.minibatches == 0:
                gate.pass_through()

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=gate.recording(_reward(spec)),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(spec.model.path),
        callbacks=[Gated()],
    )
    gate.say({"ready": True})
    trainer.train()
    gate.pass_through()


def _reward(spec: Any) -> Callable[..., list[float]]:
    """The Python function ``file.py:name`` of the spec's only reward."""
    import runpy

    path, _, name = spec.rewards[0].python.rpartition(":")
    reward: Callable[..., list[float]] = runpy.run_path(path)[name]
    return reward


def main() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    lines_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the lines
    with open(sys.argv[1], encoding="utf-8") as file:
        case = json.load(file)
    train(case, Gate(sys.stdin, lines_out))


if __name__ == "__main__":
    main()
