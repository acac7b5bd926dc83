"""A step's samples as one object: what the controller writes and the training function reads.

One safetensors file, ragged and without padding. With N samples in groups, P = sum of prompt
lengths and R = sum of response lengths:

    prompt_tokens    int32 [P]    prompts back to back (repeated per sample)
    prompt_lengths   int32 [N]
    response_tokens  int32 [R]
    response_lengths int32 [N]
    rollout_logprobs float32 [R]  under the sampling distribution, version n
    reference_logprobs float32 [R]  only where a KL penalty is used
    rewards          float32 [N]  weighted totals
    groups           int32 [N]    samples of one prompt share a number
    truncated        bool [N]     ended by length, not by a stop token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import BatchRef
from rlhfless.objects import ObjectStore, sha256

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Arrays as the module describes; ``reference_logprobs`` None where there is no penalty."""

    prompt_tokens: NDArray[np.int32]
    prompt_lengths: NDArray[np.int32]
    response_tokens: NDArray[np.int32]
    response_lengths: NDArray[np.int32]
    rollout_logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    groups: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    reference_logprobs: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        num_tokens = len(self.response_tokens)
        if (
            self.prompt_lengths.sum() != len(self.prompt_tokens)
            or self.response_lengths.sum() != num_tokens
            or len(self.rollout_logprobs) != num_tokens
            or not len(self.rewards) == len(self.groups) == len(self.prompt_lengths)
            or (self.reference_logprobs is not None and len(self.reference_logprobs) != num_tokens)
        ):
            raise InternalError("a batch's arrays do not fit together")

    @property
    def num_samples(self) -> int:
        return len(self.rewards)


def encode_batch(batch: Batch) -> bytes:
    from safetensors.numpy import save

    arrays: dict[str, Any] = {k: v for k, v in vars(batch).items() if v is not None}
    data: bytes = save(arrays)
    return data


def decode_batch(data: bytes) -> Batch:
    from safetensors.numpy import load

    return Batch(**load(data))


def write_batch(store: ObjectStore, name: str, batch: Batch, *, durable: bool = True) -> BatchRef:
    """Store a batch under ``name``; writing the same batch again is harmless. A lost update is
    replayed from it: whoever writes it without ``durable`` calls ``store.sync`` before the commit.
    """
    data = encode_batch(batch)
    store.put(name, data, durable=durable)
    return BatchRef(name=name, sha256=sha256(data), num_samples=batch.num_samples)


def read_batch(store: ObjectStore, ref: BatchRef) -> Batch:
    """Raises ``TransientError`` if the object is missing or does not match its checksum."""
    try:
        data = store.get(ref.name)
    except FileNotFoundError as error:
        raise TransientError(f"batch {ref.name} is not in the store") from error
    if sha256(data) != ref.sha256:
        raise TransientError(f"batch {ref.name} does not match its checksum")
    return decode_batch(data)
