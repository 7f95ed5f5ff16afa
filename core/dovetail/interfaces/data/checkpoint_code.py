"""CheckpointCode: Python files of a checkpoint that are allowed to run. Pure data.

It contains the text instead of a path, so every process runs exactly what was hashed.
"""

from __future__ import annotations

import msgspec

CONFIG, CAUSAL, TOKENIZER = "AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"
"""The classes of a checkpoint that can be loaded, as named in `auto_map`."""


class CheckpointCode(msgspec.Struct, frozen=True, kw_only=True):
    """`files` maps names to texts. `classes` maps CONFIG, CAUSAL and TOKENIZER, if present, to
    "module.Class" in those files. `digest` is a SHA-256 in hexadecimal digits, of the lines
    "SHA-256 of the file, two spaces, name" of all files in the order of their names."""

    digest: str
    files: dict[str, str]
    classes: dict[str, str]
