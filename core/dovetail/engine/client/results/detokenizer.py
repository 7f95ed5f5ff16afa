"""Detokenizer: converts one completion's tokens to text that is safe to show.

Combines incremental detokenization with the search for stop strings, token by token. So the result
does not depend on how many tokens arrive together. Of all finish reasons, it only decides on stop
strings.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.engine.client.results.stop import StopMatcher, TextWatch
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.tokenizer import Tokenizer, TokenStream


class Detokenizer:
    """The text of one completion. `num_tokens` counts the tokens so far.

    A `watch` gets all text and alone decides where it ends.
    """

    __slots__ = ("_matcher", "_min_tokens", "_stream", "_watch", "num_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        watch: TextWatch | None = None,
    ) -> None:
        self._stream: TokenStream | None = None
        if params.detokenize:
            self._stream = tokenizer.stream(
                prompt_ids,
                skip_special_tokens=params.skip_special_tokens,
                kept_ids=frozenset(params.kept_special_ids),
            )
        self._watch = watch
        self._matcher = StopMatcher(
            () if watch else params.stop, includes_stop=params.include_stop_str_in_output
        )
        self._min_tokens = params.min_tokens
        self.num_tokens = 0

    @property
    def matched(self) -> str | None:
        """Return the stop string that was found, or None."""
        return self._matcher.matched if self._watch is None else self._watch.matched

    def push(self, token_id: int, *, is_shown: bool = True) -> str:
        """Return the text to emit after this token. With `is_shown` False it is only counted."""
        self.num_tokens += 1
        text = self._stream.push(token_id) if self._stream is not None and is_shown else ""
        if self._watch is not None:
            self._watch.feed(text, (token_id,), (len(text),))
        return self._matcher.push(text, may_stop=self._may_stop()) if text else ""

    def flush(self, *, is_cut: bool = False) -> str:
        """Return the text held back at the end; it may still complete a stop string.

        `is_cut`: the answer was cut off by a limit.
        """
        if self._stream is None:
            return ""
        text = self._stream.flush()
        if self._watch is not None:
            self._watch.feed(text, (), ())
            self._watch.finish(is_cut=is_cut)
        return self._matcher.push(text, may_stop=self._may_stop()) + self._matcher.flush()

    def _may_stop(self) -> bool:
        return self.num_tokens >= self._min_tokens
