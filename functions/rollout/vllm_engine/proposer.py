"""Our drafts for vLLM, which makes a ``Proposer`` in its worker (speculative method
``custom_class``) and asks it after every iteration.

vLLM 0.32 tells a proposer of this kind neither which requests the rows are nor how many draft
tokens its own schedule by batch size would have: the choice is the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functions.rollout.drafting import Drafter, Integers
from functions.rollout.suffix_index import Tokens
from rlhfless.engines import DraftingOptions

PATH = f"{__name__}.Proposer"
MIB = 1 << 20


class Proposer:
    """``config``: vLLM's, which names the most draft tokens, and holds the rest of the options
    under ``OPTIONS`` in its ``additional_config``."""

    OPTIONS = "rlhfless_drafting"

    def __init__(self, config: Any) -> None:
        options = DraftingOptions(**config.additional_config[self.OPTIONS])
        self._drafter = Drafter(options.max_tokens, options.memory_mib * MIB, options.free_tokens)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Integers,
        token_ids_cpu: Tokens,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        del slot_mappings
        return self._drafter.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)

    def load_model(self, *_: object, **__: object) -> None:
        """There is none."""
