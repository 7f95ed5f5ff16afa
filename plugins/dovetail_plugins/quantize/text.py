"""The calibration text as windows of tokens."""

from __future__ import annotations

from pathlib import Path

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.tokenizer import Tokenizer

WINDOW_TOKENS = 512
LEAST_TOKENS = 32
CHARACTERS_PER_TOKEN = 32
"""More than any language needs; the rest of a long file is not read."""


def windows_of(
    path: str,
    tokenizer: Tokenizer,
    *,
    num_tokens: int,
    longest_tokens: int,
    where: str = "--calibration",
) -> torch.Tensor:
    """Return the first tokens of a text file in windows of equal length. `where` is the flag that
    names the file. Shapes: -> [S, L] int64

    Raises: ConfigError if the file cannot be read or is too short.
    """
    token_ids = tokenizer.encode(_read(path, num_tokens * CHARACTERS_PER_TOKEN, where))[:num_tokens]
    if len(token_ids) < LEAST_TOKENS:
        raise ConfigError(
            f"{len(token_ids)} tokens of text are too few.",
            where=f"{where} {path}",
            fix="give a few hundred kB of text similar to the model's later input.",
        )
    length = min(WINDOW_TOKENS, longest_tokens, len(token_ids))
    count = len(token_ids) // length
    if count == length:  # equal axes would be ambiguous
        count -= 1
    return torch.tensor(token_ids[: count * length]).view(count, length)


def _read(path: str, num_characters: int, where: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(num_characters)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}.",
            where=f"{where} {path}",
            fix="name a text file in UTF-8.",
        ) from error
