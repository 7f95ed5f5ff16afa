"""BenchDataset: where the prompts of a measurement come from, and how long answers shall be.

A dataset sees a query and draws prompts; it knows neither server nor engine.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetQuery:
    """The prompts that a measurement asks for. None: the dataset decides.

    `range_ratio` r lets lengths vary from (1 - r) to (1 + r) times what was asked. `prefix_tokens`
    stand in front of every prompt, the same ones in a share of `prefix_share` of the prompts.
    `vocab_tokens` bounds token ids where there is no tokenizer. `needs_text` forbids token ids.
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
    """One request to be made: text or token ids, and how many tokens to ask for.

    `prompt_tokens` is the prompt's length where the dataset knows it.
    """

    prompt: str | tuple[int, ...]
    output_tokens: int
    prompt_tokens: int | None = None


class BenchDataset(Plugin):
    """Draws prompts. The same query gives the same prompts, in any process.

    `sample` is the text of a small file that it can read; empty where it reads none.
    """

    interface_version: ClassVar[int] = 1
    sample: ClassVar[str] = ""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return exactly `query.num_prompts` prompts; a file with fewer begins again.

        Asking for more prompts adds to the end: the first ones stay what they were.
        Raises: ConfigError for a file that cannot be read, or for what the query lacks.
        """
