"""Tokenizers of GGUF files: their vocabulary, merges and template, using only `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail_plugins.gguf.reading.file import SUFFIX, find_file
from dovetail_plugins.gguf.vocabulary.read import read_tokenizer
from dovetail_plugins.tokenizers import _files
from dovetail_plugins.tokenizers.hf import HfTokenizer


class GgufTokenizer(HfTokenizer):
    """The tokenizer in a GGUF file."""

    Options = NoOptions
    info = Info(
        summary="the vocabulary in a GGUF file",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
        requires=("tokenizers",),
    )
    auto_rank = 1

    def __init__(self, options: Any, path: str) -> None:
        file = find_file(path)
        if file is None:
            raise ConfigError(
                f"there is no *{SUFFIX} file.",
                where=path,
                fix="give a GGUF file, or the folder of a tokenizer with --tokenizer.",
            )
        self._inner: Any = self._load(file)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the path has no such tokenizer. `query` is a path or None."""
        if query is None:
            return []
        if Path(query).is_dir() and any(
            next(Path(query).glob(n), None) for n in _files.ANY_TOKENIZER
        ):
            return ["the folder has its own tokenizer files"]
        return [] if find_file(query) is not None else [f"there is no *{SUFFIX} file"]

    def _load(self, file: Path) -> Any:
        from dovetail_plugins.tokenizers._fast import FastTokenizer

        content, settings = read_tokenizer(file)
        return FastTokenizer(file, content=content, settings=settings)
