"""dovetail: an engine for large language models in which every choice is a plugin.

The public names are loaded when they are first used; importing dovetail loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dovetail import moved
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.inputs import PromptType, TextPrompt, TokensPrompt
    from dovetail.interfaces.data.pooling_params import PoolingParams
    from dovetail.interfaces.data.sampling_params import SamplingParams
    from dovetail.llm.llm import LLM
    from dovetail.lora_request import LoRARequest
    from dovetail.outputs import (
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringRequestOutput,
    )
    from dovetail.registry import register

__all__ = [
    "LLM",
    "AsyncEngine",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "LoRARequest",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "register",
]

moved.install()

_HOMES = {
    "CompletionOutput": "dovetail.outputs",
    "RequestOutput": "dovetail.outputs",
    "ClassificationRequestOutput": "dovetail.outputs",
    "EmbeddingRequestOutput": "dovetail.outputs",
    "PoolingRequestOutput": "dovetail.outputs",
    "ScoringRequestOutput": "dovetail.outputs",
    "PromptType": "dovetail.inputs",
    "TextPrompt": "dovetail.inputs",
    "TokensPrompt": "dovetail.inputs",
    "AsyncEngine": "dovetail.engine.client.async_engine",
    "LLM": "dovetail.llm.llm",
    "LoRARequest": "dovetail.lora_request",
    "PoolingParams": "dovetail.interfaces.data.pooling_params",
    "SamplingParams": "dovetail.interfaces.data.sampling_params",
    "register": "dovetail.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
