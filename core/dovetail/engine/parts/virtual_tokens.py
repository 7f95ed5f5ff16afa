"""Virtual tokens of prompt-tuning adapters: how many vectors an adapter puts before a prompt, and
whether they fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dovetail import registry
from dovetail.config.checkpoint.adapter_config import adapter_config
from dovetail.engine.active_request import ActiveRequest
from dovetail.errors import RequestError
from dovetail.interfaces.adapter import AdapterMethod
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import RunSpec


def virtual_tokens(run: RunSpec) -> Callable[[AdapterSource], int]:
    """Return a function that counts an adapter's virtual tokens. That raises ConfigError."""
    chosen = run.adapters.methods if run.adapters is not None else ()
    methods: list[AdapterMethod] = [registry.make(one, run.model) for one in chosen]

    def count(source: AdapterSource) -> int:
        if run.adapters is None or not run.adapters.max_prompt_tokens:
            return 0
        config = adapter_config(Path(source.path))
        kind = config.get("peft_type")
        found = (m.num_prompt_tokens(config) for m in methods if kind in m.peft_types)
        return next(found, 0)

    return count


def verify_room(active: ActiveRequest, num_virtual: int, max_model_tokens: int) -> None:
    """Raises: RequestError if a request has no room for `num_virtual` vectors before its prompt"""
    if not num_virtual:
        return
    request = active.request
    if request.pooling is not None:
        raise RequestError(
            f'the adapter "{active.adapter}" puts vectors before a prompt, which is not '
            "supported for prompts that are pooled.",
            where="model",
        )
    if request.num_tokens + num_virtual >= max_model_tokens:
        raise RequestError(
            f"the prompt has {request.num_tokens} tokens, the adapter puts {num_virtual} "
            f"vectors before it; this model's maximum context length is {max_model_tokens} tokens.",
            where="prompt",
            fix="shorten the prompt.",
        )
