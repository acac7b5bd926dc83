"""Whether vLLM is to draft, and how it is told."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from functions.rollout.vllm_engine.proposer import PATH, Proposer
from rlhfless.engines import EngineOptions
from rlhfless.errors import UserError
from rlhfless.messages import SamplingParams

_log = logging.getLogger(__name__)
CPU_IS_WRONG = (
    "vLLM's CPU build samples from a wrong distribution where drafts are verified at a temperature "
    "above 0"
)
"""In 0.32: ``vllm.utils.cpu_triton_utils._expand_kernel_impl`` leaves the rows' temperatures as
uninitialised memory. ``tests/vllm/test_drafting.py`` notices when that is mended."""
MOST_ROWS = 1 << 20


def speculation(options: EngineOptions, accelerator: str) -> dict[str, Any]:
    """What ``AsyncEngineArgs`` is to be given; nothing where there is no drafting."""
    drafting = options.drafting
    if drafting is None:
        return {}
    if accelerator == "cpu" and not options.greedy:
        _log.warning("rollout.drafting is off: %s", CPU_IS_WRONG)
        return {}
    return {
        "speculative_config": {
            "method": "custom_class",
            "model": PATH,
            "num_speculative_tokens": drafting.max_tokens,
            # How many it really is, the proposer says. With a schedule of its own vLLM does not
            # pad rows that come in by drafts of no meaning.
            "num_speculative_tokens_per_batch_size": [(1, MOST_ROWS, drafting.max_tokens)],
        },
        "additional_config": {Proposer.OPTIONS: msgspec.to_builtins(drafting)},
    }


def check_sampling(options: EngineOptions, sampling: SamplingParams) -> None:
    """Raises ``UserError`` for a request that an engine started with these options must not run."""
    if options.greedy and sampling.temperature > 0:
        raise UserError(
            "this instance was started for greedy requests alone",
            param="sampling.temperature",
            hint=f"start it without EngineOptions.greedy; then it drafts on GPUs only: "
            f"{CPU_IS_WRONG}",
        )
