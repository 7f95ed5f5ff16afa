"""MistralTokenizer: tekken.json or tokenizer.model.vN, as Mistral publishes its tokenizers.

The files become a tokenizer of the `tokenizers` library; no other package is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail_plugins.mistral._vocabulary import find_file
from dovetail_plugins.tokenizers.hf import HfTokenizer


class MistralTokenizer(HfTokenizer):
    """The tokenizer in Mistral's own file, even if there is a tokenizer.json."""

    Options = NoOptions
    info = Info(
        summary="Mistral's tekken.json or tokenizer.model.vN",
        source="https://github.com/mistralai/mistral-common",
        requires=("tokenizers",),
    )
    auto_rank = -1

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this kind. `query` is its path or None."""
        if query is None or find_file(Path(query)) is not None:
            return []
        return ["the folder has no tekken.json or tokenizer.model.vN"]

    def _load(self, folder: Path) -> Any:
        from dovetail_plugins.mistral._tokenizer import read_tokenizer

        file = find_file(folder)
        if file is None:
            raise ConfigError(
                "the folder has no tekken.json or tokenizer.model.vN.",
                where=str(folder),
                fix="leave --tokenizer-mode out.",
            )
        return read_tokenizer(file)
