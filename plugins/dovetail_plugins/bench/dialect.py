"""Request bodies in OpenAI's two dialects: completions and chat."""

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
"""Options that request token counts, best first; not every server accepts each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The format of every body of a run. `usage` are the stream options that the server accepts."""

    model: str
    is_chat: bool
    temperature: float = 0.0
    ignores_eos: bool = False
    usage: Mapping[str, bool] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: BenchPrompt) -> bytes:
        """Return the JSON of a streamed request. Raises: ConfigError for token ids in a chat"""
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
        payload = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(payload).encode()


ENDS = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/embeddings": "embeddings",
    "/pooling": "pooling",
    "/classify": "classify",
    "/score": "score",
    "/rerank": "rerank",
}
"""Endings of paths that can be measured -> the kind of request."""
BACKENDS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-embeddings": "/v1/embeddings",
    "vllm-pooling": "/pooling",
    "vllm-classify": "/classify",
    "vllm-score": "/v1/score",
    "vllm-rerank": "/v1/rerank",
}
"""Names of --backend -> the endpoint of each."""
GENERATED = ("chat", "completions")
"""Kinds with streamed answers; all others are pooled."""


def endpoint_of(endpoint: str | None, backend: str | None) -> str:
    """Return the path to request. Raises: ConfigError for an unknown backend"""
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(
            f"{backend!r} is not known.",
            where="--backend",
            fix=f"use one of {', '.join(BACKENDS)}.",
        )
    return endpoint or BACKENDS[backend or "openai"]


def kind_of_path(path: str) -> str:
    """Return the kind of request for a path, one of ENDS. Raises: ConfigError for other
    endpoints"""
    for end, kind in ENDS.items():
        if path.endswith(end):
            return kind
    raise ConfigError(
        f"{path} cannot be measured.",
        where="--endpoint",
        fix=f"give a path that ends in one of {', '.join(ENDS)}.",
    )


def models_path(path: str) -> str:
    """Return the path that lists the models of an endpoint's server. Some pooling endpoints are
    outside /v1."""
    kind = kind_of_path(path)
    base = path.removesuffix(next(end for end, named in ENDS.items() if named == kind))
    if kind not in GENERATED and not base.endswith("/v1"):
        base = f"{base.removesuffix('/v2')}/v1"
    return f"{base}/models"
