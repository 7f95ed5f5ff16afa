"""The texts around the messages of OpenAI's harmony format.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

MESSAGE = "<|message|>"
ANALYSIS = f"<|channel|>analysis{MESSAGE}"
CALL = "<|call|>"
END = "<|end|>"
RETURN = "<|return|>"
TO = "to="
STARTS = (
    f"<|channel|>commentary {TO}",
    f"<|channel|>analysis {TO}",
    f"<|start|>assistant {TO}",
)
"""What stands before a recipient."""
START = f"{STARTS[0]}functions."
HEAD = re.compile(
    r"(?:functions\.)?+(?P<name>[^\s<>]{1,128}+)\s*+(?:<\|channel\|>\s*+\w++\s*+)?(?:<\|constrain\|>)?\s*+"
    r"\w*+\s*+" + re.escape(MESSAGE)
)
"""What stands between `TO` and the message."""
PART_OF_HEAD = re.compile(r"(?:functions\.)?+[^\s<>]{1,128}+\s*+(?:\w++\s*+)?(?:<.*+)?|", re.DOTALL)
"""What such a text may begin with."""
OVER = re.compile(r"<\|(?:end|call|return|start)\|>")
"""What ends a message that is not JSON."""
LAYOUT = (
    "<|start|>assistant",
    f"<|channel|>final{MESSAGE}",
    f"<|channel|>final <|constrain|>json{MESSAGE}",
    f"<|channel|>commentary{MESSAGE}",
    END,
    CALL,
    RETURN,
)
