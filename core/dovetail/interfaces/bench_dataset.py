"""BenchDataset: the source of a benchmark's prompts and output lengths.

A dataset gets a query and draws prompts; it knows neither server nor engine.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetQuery:
    """The prompts that a benchmark requests. None: the dataset decides.

    `range_ratio` r lets lengths vary from (1 - r) to (1 + r) times the requested one. Every prompt
    starts with `prefix_tokens` tokens, which a share `prefix_share` of the prompts have in common.
    `vocab_tokens` bounds token ids if there is no tokenizer. `needs_text` forbids token ids.
    """

    num_prompts: int
    seed: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    range_ratio: float = 0.0
    prefix_tokens: int = 0
    prefix_share: float = 1.0
    path: str | None = None
    tokenizer: Tokenizer | None = None
    vocab_tokens: int | None = None
    needs_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One request to send: text or token ids, and how many tokens to generate.

    `prompt_tokens` is the prompt's length if the dataset knows it.
    """

    prompt: str | tuple[int, ...]
    output_tokens: int
    prompt_tokens: int | None = None


class BenchDataset(Plugin):
    """Draws prompts. The same query gives the same prompts, in any process.

    `sample` is the text of a small file that it can read; empty if it reads no files.
    """

    interface_version: ClassVar[int] = 1
    sample: ClassVar[str] = ""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return exactly `query.num_prompts` prompts; a file with fewer is repeated.

        Requesting more prompts adds to the end: the first ones do not change.
        Raises: ConfigError for a file that cannot be read, or for what the query lacks.
        """
