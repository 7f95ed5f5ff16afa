"""WithMarkers: a fake tokenizer with the tokens by which a code model fills in the middle."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dovetail_plugins.apis._infill import InfillTokens
from dovetail_testing.fakes.async_engine import FakeFacts, FakeTokenizer

FIRST = 0xF0000
"""The id of the first token that is not a character."""


class WithMarkers(FakeTokenizer):
    """Characters, and the tokens of a layout; with a token that begins every text, or without."""

    def __init__(self, layout: InfillTokens, bos: int | None = None) -> None:
        super().__init__(facts=FakeFacts(bos_token_id=bos))
        texts = [*layout.repository, *layout.ends]
        names = dict.fromkeys([layout.prefix, layout.suffix, layout.middle, *texts])
        self.markers = [name for name in names if name]
        self._split = re.compile("(" + "|".join(map(re.escape, self.markers)) + ")")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        bos = self.facts().bos_token_id
        ids = [bos] if add_special_tokens and bos is not None else []
        for part in self._split.split(text):
            ids += [self.id_of(part)] if part in self.markers else map(ord, part)
        return ids

    def id_of(self, name: str) -> int:
        return FIRST + self.markers.index(name)

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self.markers[i - FIRST] if i >= FIRST else chr(i) for i in token_ids]
