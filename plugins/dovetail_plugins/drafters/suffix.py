"""SuffixDrafter: drafts what most often followed this text's end, here and in finished answers.

Pays off if answers repeat their prompt, themselves or one another: agents, code, extraction. It
runs no model. Knows only token ids. Source: Oliaro et al., "SuffixDecoding: extreme speculative
decoding for emerging AI applications", 2024.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters._predicted import PredictingDrafter
from dovetail_plugins.drafters._suffixes import GAP, LEAST_MATCH, SuffixIndex

MAX_FINISHED_TOKENS = 1 << 20
"""Maximum number of stored tokens of finished answers: 12 bytes each, and as many for chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixOptions:
    """Options of the suffix drafter, under the names of the method's authors."""

    suffix_decoding_max_tree_depth: int = field(
        default=24,
        metadata={
            "help": "most tokens of a match and its draft together",
            "unit": "tokens",
            "ge": LEAST_MATCH + 1,
        },
    )
    suffix_decoding_max_cached_requests: int = field(
        default=10000,
        metadata={
            "help": "most finished requests whose answers are remembered, the latest ones; 0: "
            "none, a request drafts from its own tokens alone",
            "unit": "requests",
            "ge": 0,
        },
    )
    suffix_decoding_max_spec_factor: float = field(
        default=1.0,
        metadata={"help": "how many times as long as its match a draft may be", "ge": 0.0},
    )
    suffix_decoding_min_token_prob: float = field(
        default=0.1,
        metadata={
            "help": "how often a draft's tokens must have followed its match, a share of all cases",
            "ge": 0.0,
            "le": 1.0,
        },
    )


class _Own:
    """The tokens of a live request. `first` is the start of its answer."""

    __slots__ = ("first", "index", "num_tokens")

    def __init__(self, num_tokens: int) -> None:
        self.index = SuffixIndex()
        self.first = max(0, num_tokens - 1)
        self.num_tokens = 0


class SuffixDrafter(PredictingDrafter):
    """One index per live request, one of all finished answers; a call takes some microseconds."""

    info = Info(
        summary="drafts what most often followed the last tokens, also in finished answers",
        source="https://arxiv.org/abs/2411.04975",
    )
    capabilities = PredictingDrafter.capabilities | {"remembers"}
    Options = SuffixOptions

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        super().__init__()
        depth: int = options.suffix_decoding_max_tree_depth
        self._most_matched = depth - 1
        self._factor: float = options.suffix_decoding_max_spec_factor
        # Of a long match the part that leaves most room counts.
        self._most_drafted = int(depth * self._factor / (1.0 + self._factor))
        self._least: float = options.suffix_decoding_min_token_prob
        self._max_finished: int = options.suffix_decoding_max_cached_requests
        self._live: dict[str, _Own] = {}
        self._finished = SuffixIndex()
        self._starts: deque[int] = deque()

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return what a prediction says, or the draft from which more is expected: of the request's
        own text, or of others."""
        own = self._live.get(request_id)
        if own is None:
            own = self._live[request_id] = _Own(len(token_ids))
        own.index.extend(token_ids[own.num_tokens :])
        own.num_tokens = len(token_ids)
        predicted = self.predicted(request_id, token_ids, max_tokens)
        if predicted:
            return predicted
        draft, score = self._best(own.index, token_ids, max_tokens)
        if score < max_tokens and self._starts:
            other, other_score = self._best(self._finished, token_ids, max_tokens)
            if other_score > score:
                return other
        return draft

    def _best(
        self, index: SuffixIndex, token_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], float]:
        found = index.matches(token_ids, self._most_matched)
        if not found:
            return [], 0.0
        return index.draft(found, min(max_tokens, self._most_drafted), self._factor, self._least)

    def forget(self, request_id: str) -> None:
        """Drop the request's index and prediction, and remember its answer."""
        super().forget(request_id)
        own = self._live.pop(request_id, None)
        if own is None or not self._max_finished:
            return
        answer = own.index.tokens(own.first)
        if len(answer) <= LEAST_MATCH:
            return
        self._starts.append(self._finished.end)
        self._finished.extend([*answer[-MAX_FINISHED_TOKENS // 2 :], GAP])
        while (
            len(self._starts) > self._max_finished
            or self._finished.end - self._starts[0] > MAX_FINISHED_TOKENS
        ):
            self._starts.popleft()
            self._finished.drop_before(self._starts[0])
