"""A model whose answer depends on what is in the prompt; its chat template is the demo model's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_testing.models import write_replay_checkpoint

CONTEXT_TOKENS = 131_072
"""Room for the prompts of coding agents, in the small tokens of the demo model."""


def cued_model(folder: Path, answers: Iterable[tuple[str, str]], *, otherwise: str) -> Path:
    """Write a model that gives the answer of the last cue in its prompt; return its folder.

    Cues are words after a space, which the demo tokenizer never joins with their neighbours.
    """
    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    scripts: list[dict[str, Any]] = [{"tokens": ids(otherwise)}]
    scripts += [{"cue": ids(cue), "tokens": ids(answer)} for cue, answer in answers]
    return write_replay_checkpoint(
        folder, tokenizer_from=DEMO_PATH, scripts=scripts, max_position_tokens=CONTEXT_TOKENS
    )


def tool_call(name: str, arguments: Any) -> str:
    """Return a call as the demo model writes it."""
    content = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"
