// A job for which everything is there already: the one of examples/quickstart.yaml.

export const QUICK_START = `\
# GRPO on a tiny policy and a task whose answers can be checked. The policy copies letters and adds
# three to digits (a1b7c0? -> a1=4;b7=0;c0=3). It knows how, but is unsure: a third of its sampled
# answers are right before, nine in ten after.
name: quickstart
seed: 0

model:
  path: library:quickstart/model

dataset:
  path: library:quickstart/data/train.jsonl

evaluation:
  dataset:
    path: library:quickstart/data/eval.jsonl

rewards:
  - python: library:quickstart/rewards.py:exact_match

algorithm:
  name: grpo
  group_size: 8
  clip_low: 0.2
  clip_high: 0.2

rollout:
  max_tokens: 64
  temperature: 1.0
  max_instances: 2

training:
  steps: 30
  prompts_per_step: 32
  minibatches: 4
  learning_rate: 2.0e-4
  schedule: linear
  checkpoint_every: 10
`;
