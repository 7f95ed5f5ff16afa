"""CheckpointCode: Python files that came with a checkpoint and were allowed to run. Pure data.

The text travels instead of a path, so what runs is what was hashed, in every process.
"""

from __future__ import annotations

import msgspec

CONFIG, CAUSAL, TOKENIZER = "AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"
"""The classes of a checkpoint that may be asked for, as `auto_map` calls them."""


class CheckpointCode(msgspec.Struct, frozen=True, kw_only=True):
    """`files` maps names to texts; `classes` maps CONFIG, CAUSAL and TOKENIZER, where there are
    such, to "module.Class" among them. `digest` is the SHA-256 of the files, in hexadecimal digits:
    that of the lines "SHA-256, two spaces, name" of all of them in the order of their names.
    """

    digest: str
    files: dict[str, str]
    classes: dict[str, str]
