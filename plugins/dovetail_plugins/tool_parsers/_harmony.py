"""The texts around the messages of OpenAI's harmony format. Knows neither arguments nor thinking.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

MESSAGE = "<|message|>"
ANALYSIS = f"<|channel|>analysis{MESSAGE}"
CALL = "<|call|>"
END = "<|end|>"
TO = "to=functions."
START = f"<|channel|>commentary {TO}"
HEAD = re.compile(
    r"(?P<name>[^\s<>]++)\s*+(?:<\|channel\|>\s*+\w++\s*+)?(?:<\|constrain\|>)?\s*+\w*+\s*+"
    + re.escape(MESSAGE)
    + r"\s*+(?=\{)"
)
"""What stands between `TO` and a call's arguments."""
LAYOUT = (
    "<|start|>assistant",
    f"<|channel|>final{MESSAGE}",
    f"<|channel|>final <|constrain|>json{MESSAGE}",
    f"<|channel|>commentary{MESSAGE}",
    END,
    CALL,
    "<|return|>",
)
