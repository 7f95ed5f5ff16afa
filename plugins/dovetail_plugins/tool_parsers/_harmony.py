"""The texts around the messages of OpenAI's harmony format. Knows neither calls nor thinking.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

MESSAGE = "<|message|>"
ANALYSIS = f"<|channel|>analysis{MESSAGE}"
CALL = "<|call|>"
END = "<|end|>"
LAYOUT = (
    "<|start|>assistant",
    f"<|channel|>final{MESSAGE}",
    f"<|channel|>final <|constrain|>json{MESSAGE}",
    f"<|channel|>commentary{MESSAGE}",
    END,
    CALL,
    "<|return|>",
)
