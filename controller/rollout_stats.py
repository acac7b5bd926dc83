"""What a step's rollout cost, summed over its calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhfless.messages import PrefillDone, RolloutDone


@dataclass
class RolloutStats:
    """Tokens, bytes and seconds as in ``RolloutDone``; ``weights_pull_s`` is the longest pull. What
    prefill calls compute is computed, and not saved: both together are what the samples needed.

    ``calls`` and ``prefills`` keep what each call reported, for the cost model. ``moved``: samples
    that changed their actor, ``moved_prompts``: prompts that actors came to need by that (siblings
    that move together need theirs once), ``released``: instances let go before the step's end.
    """

    prefill_computed: int = 0
    prefill_loaded: int = 0
    prefill_reused: int = 0
    prefill_saved: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    kv_bytes: int = 0
    weights_pull_s: float = 0.0
    weights_bytes: int = 0
    lost_calls: int = 0
    moved: int = 0
    moved_prompts: int = 0
    released: int = 0
    calls: list[RolloutDone] = field(default_factory=list)
    prefills: list[PrefillDone] = field(default_factory=list)

    def add(self, done: RolloutDone) -> None:
        self.prefill_computed += done.prefill_computed
        self.prefill_loaded += done.prefill_loaded
        self.prefill_reused += done.prefill_reused
        self.prefill_saved += done.prefill_saved
        self.draft_tokens += done.draft_tokens
        self.accepted_tokens += done.accepted_tokens
        self.kv_bytes += done.kv_loaded_bytes + done.kv_published_bytes
        self.weights_pull_s = max(self.weights_pull_s, done.weights_pull_s)
        self.weights_bytes += done.weights_bytes
        self.calls.append(done)

    def add_prefill(self, done: PrefillDone) -> None:
        self.prefill_computed += done.tokens_computed
        self.prefill_saved -= done.tokens_computed
        self.prefill_loaded += done.tokens_loaded
        self.kv_bytes += done.published_bytes
        self.weights_pull_s = max(self.weights_pull_s, done.weights_pull_s)
        self.weights_bytes += done.weights_bytes
        self.prefills.append(done)
