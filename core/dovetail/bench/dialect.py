"""The body of a request in OpenAI's two dialects: completions and chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchPrompt

USAGE_OPTIONS: tuple[dict[str, bool], ...] = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    {},
)
"""What to ask for of token counts, best first; not every server takes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How every body of a run is written. `usage` are the stream options the server takes."""

    model: str
    is_chat: bool
    temperature: float = 0.0
    ignores_eos: bool = False
    usage: Mapping[str, bool] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: BenchPrompt) -> bytes:
        """Return the JSON of a streamed request. Raises: ConfigError for ids in a chat"""
        fields: dict[str, Any] = {"model": self.model, "stream": True}
        if not self.is_chat:
            text = prompt.prompt
            fields |= {"prompt": text if isinstance(text, str) else list(text)}
            fields["max_tokens"] = prompt.output_tokens
        elif isinstance(prompt.prompt, str):
            fields["messages"] = [{"role": "user", "content": prompt.prompt}]
            fields["max_completion_tokens"] = prompt.output_tokens
        else:
            raise ConfigError("the dataset gives token ids, but a chat takes text.")
        fields["temperature"] = self.temperature
        if self.ignores_eos:
            fields["ignore_eos"] = True
        if self.usage:
            fields["stream_options"] = dict(self.usage)
        fields |= self.extra
        kept = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(kept).encode()


def is_chat_path(path: str) -> bool:
    """Return whether a path takes messages. Raises: ConfigError for any other endpoint."""
    if path.endswith("/chat/completions"):
        return True
    if path.endswith("/completions"):
        return False
    raise ConfigError(
        f"{path} cannot be measured.",
        where="--endpoint",
        fix="give a path that ends in /completions or /chat/completions.",
    )


def models_path(path: str) -> str:
    """Return the path that lists models, beside the endpoint's."""
    return path.removesuffix("/completions").removesuffix("/chat") + "/models"
