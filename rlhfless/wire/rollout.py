"""Messages of the rollout function."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rlhfless.wire.base import CallInfo, Frame, ModelRef, Struct

FinishReason: TypeAlias = Literal["stop", "length"]


class SamplingParams(Struct, frozen=True, kw_only=True):
    """``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 mean no truncation.

    ``stop_token_ids`` end a response and belong to it. Log-probs that come back are those of the
    distribution sampled from, after temperature and truncation.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: list[int] = []


class SampleTask(Struct, frozen=True, kw_only=True):
    """One sample to generate or to continue.

    ``prompt`` indexes the request's ``prompts``; ``tokens`` were generated before, elsewhere;
    ``max_tokens`` bounds the whole response, ``tokens`` included; ``seed`` as ``rlhfless.seeds``.
    """

    id: str
    prompt: int
    seed: int
    max_tokens: int
    tokens: list[int] = []


class PrefixUse(Struct, frozen=True, kw_only=True):
    """How a call uses stored keys and values (``prefix_cache``).

    ``cuts[p]``: where the segments of prompt p end, ascending, in tokens, each below the prompt's
    length: the last token is always run, for its logits. Keys of segments follow from the tokens
    up to their end and from the model; what is not in the instance's memory is looked for in the
    object store if ``load``. With ``publish``, segments that had to be computed are put there.
    """

    cuts: list[list[int]]
    load: bool = True
    publish: bool = False


class RolloutRequest(Struct, frozen=True, kw_only=True):
    """``max_batch`` bounds the samples decoded together (0: the engine decides).

    Prompts are prefilled once for each entry of ``prompts``, however many samples name it.
    ``prefix`` None: keys and values stay in the call. ``progress_s``: seconds between ``Progress``
    frames; ``flush_s``: at least so many between frames of tokens, beside those of the end: what a
    killed instance may lose, for fewer frames (0: the engine decides).
    """

    call: CallInfo
    model: ModelRef
    sampling: SamplingParams
    prompts: list[list[int]]
    samples: list[SampleTask]
    max_batch: int = 0
    prefix: PrefixUse | None = None
    progress_s: float = 1.0
    flush_s: float = 0.0


class SteerRequest(Struct, frozen=True, kw_only=True):
    """Change the running rollout call ``target``: give it further samples, take some away.

    ``number`` counts a call's changes from 1; a repeat of one that was taken is acknowledged and
    changes nothing. ``prompts`` and ``samples`` follow the call's own: they get the next indices,
    and ``SampleTask.prompt`` counts from the call's first prompt. ``cuts`` are those of the new
    prompts. ``release`` holds indices of samples to give up: the stream sends what they have, then
    names in ``Released`` those that were not finished.
    """

    call: CallInfo
    target: str
    number: int
    prompts: list[list[int]] = []
    cuts: list[list[int]] = []
    samples: list[SampleTask] = []
    release: list[int] = []


class Steered(Frame, frozen=True, kw_only=True):
    """Answer to a ``SteerRequest``; not ``accepted``: the call has ended or is about to."""

    accepted: bool


class PrefillRequest(Struct, frozen=True, kw_only=True):
    """Compute the segments ``cuts`` (as ``PrefixUse``) of ``prompts`` and publish those that are
    not in the object store yet."""

    call: CallInfo
    model: ModelRef
    prompts: list[list[int]]
    cuts: list[list[int]]


class PrefillDone(Frame, frozen=True, kw_only=True):
    """Tokens run through the model, tokens whose keys and values were found, and what was stored.

    Times in seconds; ``weights_*`` as in ``RolloutDone``.
    """

    tokens_computed: int = 0
    tokens_loaded: int = 0
    prefill_s: float = 0.0
    published_bytes: int = 0
    publish_s: float = 0.0
    weights_pull_s: float = 0.0
    weights_bytes: int = 0


class Tokens(Frame, frozen=True, kw_only=True):
    """New tokens of some samples, in columns.

    Entry i: ``counts[i]`` tokens of ``request.samples[samples[i]]`` at response positions
    ``starts[i] ..``. ``tokens`` and ``logprobs`` (float32 LE) hold the entries back to back.
    ``version`` is the policy version that produced them.
    """

    samples: list[int]
    starts: list[int]
    counts: list[int]
    tokens: list[int]
    logprobs: bytes
    version: int


class Finished(Frame, frozen=True, kw_only=True):
    """Samples (indices into the request) whose last token has been sent, and why they ended."""

    samples: list[int]
    reasons: list[FinishReason]


class Released(Frame, frozen=True, kw_only=True):
    """Samples given up because a ``SteerRequest`` said so; all their tokens have been sent."""

    samples: list[int]


class Progress(Frame, frozen=True, kw_only=True):
    """Load of the engine: samples running and waiting, tokens cached, iterations so far."""

    running: int
    waiting: int
    kv_tokens: int
    iterations: int


class RolloutDone(Frame, frozen=True, kw_only=True):
    """End of a rollout stream. ``unfinished`` is not empty after a drain or a deadline.

    Prompt tokens: ``prefill_computed`` were run through the model, ``prefill_loaded`` came from
    the object store and ``prefill_reused`` from the instance's memory, ``prefill_saved`` were
    spared in all (sharing within the call included). ``prefill_s`` is without ``kv_load_s`` and
    ``kv_publish_s``; bytes are those that were moved. ``context_tokens`` sums, over the
    ``iterations``, the tokens all rows attended to. Of ``draft_tokens`` that were verified,
    ``accepted_tokens`` are among those generated. ``kv_loads``: segments that were loaded. Times in
    seconds.

    Of the engine: ``max_batch`` samples together at most, whose keys and values hold
    ``kv_capacity`` tokens; 0: not known. It stores and loads them at ``kv_token_bytes`` bytes a
    token; 0: it does not. It does so in whole blocks of ``kv_block_tokens`` tokens; 0: where the
    cuts are.
    """

    unfinished: list[int] = []
    generated_tokens: int = 0
    prefill_computed: int = 0
    prefill_loaded: int = 0
    prefill_reused: int = 0
    prefill_saved: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    iterations: int = 0
    context_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    kv_loads: int = 0
    kv_load_s: float = 0.0
    kv_loaded_bytes: int = 0
    kv_publish_s: float = 0.0
    kv_published_bytes: int = 0
    weights_pull_s: float = 0.0
    weights_bytes: int = 0
    max_batch: int = 0
    kv_capacity: int = 0
    kv_token_bytes: int = 0
    kv_block_tokens: int = 0
