"""ScheduleSpec: the limits under which a scheduler plans steps."""

from __future__ import annotations

import msgspec


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the scheduler. Counts of requests and tokens.

    `long_prefill_tokens` is the maximum number of prompt tokens of one request in a step (0: no
    limit). `max_partial` prompts may be computed in parts at the same time, `max_long_partial` of
    those with more than `long_prompt_tokens` (None: no limit). With `async_steps` one more plan is
    made ahead of the results; with a pipeline of `num_stages`, as many as there are stages. A step
    encodes media of up to `encoder_rows` vectors; `kept_encoder_rows` vectors are cached. With
    `keeps_parts_whole` one step computes all positions of a part of the prompt.
    """

    max_rows: int
    max_step_tokens: int
    max_model_tokens: int
    uses_chunked_prefill: bool
    long_prefill_tokens: int
    async_steps: bool
    max_partial: int | None = None
    max_long_partial: int | None = None
    long_prompt_tokens: int = 0
    num_stages: int = 1
    encoder_rows: int = 0
    kept_encoder_rows: int = 0
    keeps_parts_whole: bool = False

    @property
    def most_part_tokens(self) -> int:
        """Return the maximum number of positions of a part that is computed whole, so that it never
        waits forever: a step's budget for one request while all others draw a token each."""
        max_tokens = self.max_step_tokens - self.max_rows + 1
        limit = self.long_prefill_tokens if self.uses_chunked_prefill else 0
        return min(max_tokens, limit) if limit else max_tokens

    @property
    def plans_in_flight(self) -> int:
        """Return how many plans may be in flight at the same time."""
        return self.num_stages + self.async_steps

    @property
    def chains_steps(self) -> bool:
        """Return whether a request may be in the next plan before its last drawn token is known.
        Not in a pipeline: its first stage does not draw."""
        return self.async_steps and self.num_stages == 1
