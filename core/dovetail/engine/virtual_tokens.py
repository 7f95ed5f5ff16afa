"""How many vectors an adapter puts before a prompt, as the method that reads its sort tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dovetail import registry
from dovetail.config.checkpoint.adapter_config import adapter_config
from dovetail.interfaces.adapter import AdapterMethod
from dovetail.interfaces.adapter_spec import AdapterSource
from dovetail.interfaces.spec import RunSpec


def virtual_tokens(run: RunSpec) -> Callable[[AdapterSource], int]:
    """Return what counts the vectors of an adapter; it raises ConfigError where it cannot."""
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
