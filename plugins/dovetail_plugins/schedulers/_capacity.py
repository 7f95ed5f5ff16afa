"""Capacity: how long one request may be, by the context and by the cache."""

from __future__ import annotations

from dovetail.engine.context_length import prompt_too_long, room_for_answer
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.scheduler import KVCache, RequestState


class Capacity:
    """`num_tokens` is how many tokens of one request the whole cache holds, of which
    `uncommitted_tokens` may be in steps in flight."""

    def __init__(self, spec: ScheduleSpec, cache: KVCache, uncommitted_tokens: int) -> None:
        self._spec = spec
        low, high = 0, spec.max_model_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if cache.blocks_for(middle, uncommitted_tokens) <= cache.num_blocks:
                low = middle
            else:
                high = middle - 1
        self.num_tokens = low

    def verify(self, request: RequestState) -> None:
        """Raise RequestError for a request that can never fit."""
        spec, num_tokens = self._spec, request.num_tokens
        if request.pooling is None:
            room_for_answer(num_tokens, spec.max_model_tokens)
        if num_tokens > self.num_tokens:
            limit = f"the KV cache holds {self.num_tokens} of one request"
            raise prompt_too_long(num_tokens, limit, "or give the KV cache more memory")
        if not spec.uses_chunked_prefill and num_tokens > spec.max_step_tokens:
            limit = f"a step takes {spec.max_step_tokens}, and prompts are not computed in parts"
            fix = "raise --max-num-batched-tokens, or set --enable-chunked-prefill"
            raise prompt_too_long(num_tokens, limit, fix)

    def max_tokens(self, request: RequestState) -> int:
        """Return the length at which a request surely ends, whatever is drawn."""
        if request.pooling is not None:
            return request.num_prompt_tokens + 1  # a pooled result instead of a token
        # The last token is drawn but never computed: one more than the cache holds.
        limit = min(self._spec.max_model_tokens, self.num_tokens + 1)
        if request.sampling.max_tokens is None:
            return limit
        return min(limit, request.num_prompt_tokens + request.sampling.max_tokens)
