"""What each worker of a training group holds, and how far its memory grows.

    python -m benchmarks.training_workers [--json FILE]

The same update of a random Llama in float32 (full training, AdamW) by groups of 1, 2 and 4 workers
of this machine, over gloo. ``held``: bytes of weights and optimizer state of the worker that holds
most, counted. ``grown``: by how much more memory of its own a worker has after the update than
before the model was loaded, the most of all; the peak while it is loaded is not in it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing as mp
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import common
from rlhfless.batches import Batch
from rlhfless.messages import (
    Algorithm,
    BatchRef,
    CallInfo,
    ModelRef,
    Optimization,
    TrainRequest,
)

SIZES = (1, 2, 4)
PATIENCE_S = 120.0
VOCABULARY, GROUPS, GROUP, TOKENS = 4096, 4, 4, 64


class Held(msgspec.Struct):
    """Bytes of one worker."""

    held: int
    grown: int


def make_model(folder: str) -> int:
    """Its parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)
    return int(model.num_parameters())


def make_batch() -> Batch:
    rng = np.random.default_rng(0)
    count = GROUPS * GROUP
    lengths = np.full(count, TOKENS, np.int32)
    prompts = rng.integers(4, VOCABULARY, (GROUPS, 16), np.int32).repeat(GROUP, 0)
    return Batch(
        prompt_tokens=prompts.ravel(),
        prompt_lengths=np.full(count, 16, np.int32),
        response_tokens=rng.integers(4, VOCABULARY, count * TOKENS, np.int32),
        response_lengths=lengths,
        rollout_logprobs=np.full(count * TOKENS, -8, np.float32),
        rewards=rng.normal(size=count).astype(np.float32),
        groups=np.repeat(np.arange(GROUPS, dtype=np.int32), GROUP),
        truncated=np.zeros(count, np.bool_),
    )


def own_bytes() -> int:
    """Memory that is neither shared nor a file's, without what was freed and not given back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["RssAnon"].split()[0]) << 10


def work(rank: int, size: int, port: int, folder: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from transformers.models.llama import modeling_llama  # noqa: F401  (before memory is counted)

    from functions.training.group import SOLO, Group, join_store
    from functions.training.learner import Learner
    from functions.training.shards import slice_of
    from functions.training.update import Update

    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    group = SOLO if size == 1 else Group.meet(join_store("127.0.0.1", port), rank, size, cpu)
    request = TrainRequest(
        call=CallInfo(id="c", job="j", step=0, deadline_s=1, store="memory://"),
        model=ModelRef(path=folder, job="j", version=0),
        batch=BatchRef(name="b", sha256="", num_samples=0),
        algorithm=Algorithm(name="grpo", advantage="group_norm"),
        optimization=Optimization(learning_rate=1e-4, total_steps=10),
        seed=0,
        max_tokens=TOKENS,
    )
    before = own_bytes()
    learner = Learner(request, cpu, 0, group)
    for _ in Update(learner, request, make_batch()).run():
        pass
    tensors = [*learner.policy.model.parameters(), *learner.optimizer.state().values()]
    held = sum(slice_of(t).nbytes for t in tensors)
    pipe.send_bytes(msgspec.json.encode(Held(held, own_bytes() - before)))
    os._exit(0)


def measure(size: int, folder: str) -> Held:
    """Of the worker that has most."""
    from functions.training.group import new_store

    context = mp.get_context("spawn")
    store = new_store()
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=work, args=(rank, size, store.port, folder, pipes[rank][1]))
        for rank in range(size)
    ]
    told: list[Held] = []
    try:
        for process in processes:
            process.start()
        for rank, (receiving, _) in enumerate(pipes):
            if not receiving.poll(PATIENCE_S):
                raise TimeoutError(f"worker {rank} of {size} is not done")
            told.append(msgspec.json.decode(receiving.recv_bytes(), type=Held))
    finally:
        for process in processes:
            process.kill()
            process.join()
    return Held(max(each.held for each in told), max(each.grown for each in told))


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parameters = make_model(folder)
        print(f"{parameters / 1e6:.1f}M parameters")
        found = {size: measure(size, folder) for size in SIZES}
    for size, each in found.items():
        print(f"{size} workers: held {each.held / 1e6:7.1f} MB, grown {each.grown / 1e6:7.1f} MB")
    if options.json:
        facts = {
            "machine": common.machine(),
            "parameters": parameters,
            "workers": {str(size): msgspec.to_builtins(each) for size, each in found.items()},
        }
        Path(options.json).write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main(common.arguments(__doc__ or "", threads=False).parse_args())
