"""Vectors before a prompt, as PEFT saves prompt tuning and p-tuning.

    x = [v_1 ... v_n, E(t_1) ... E(t_m)]

Sources: Lester et al., "The power of scale for parameter-efficient prompt tuning", 2021; Liu et
al., "GPT understands, too", 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.adapter_config import CONFIG
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.adapters._peft import setting, tensors_of

TENSOR = "prompt_embeddings"
NUM_TOKENS = "num_virtual_tokens"


class PromptAdapter(AdapterMethod):
    """Vectors before the first token."""

    info = Info(summary="prompt tuning and p-tuning as PEFT saves them")
    capabilities = frozenset({"prompt"})
    peft_types = ("PROMPT_TUNING", "P_TUNING")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self._size = model.hidden_size

    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a folder. Raises: ConfigError naming the file and the key"""
        tensors = tensors_of(folder)
        where = f"{folder}: {TENSOR}"
        if set(tensors) != {TENSOR}:
            others = ", ".join(sorted(set(tensors) - {TENSOR})) or "nothing"
            raise ConfigError(f"the vectors are not alone there: {others} is found.", where=where)
        wanted = [self.num_prompt_tokens(config), self._size]
        if list(tensors[TENSOR].shape) != wanted:
            raise ConfigError(
                f"its shape is {list(tensors[TENSOR].shape)}, not {wanted}.",
                where=where,
                fix="use an adapter that was trained for this model.",
            )
        return AdapterWeights(changes={}, prompt=tensors[TENSOR])

    def num_prompt_tokens(self, config: Mapping[str, Any]) -> int:
        """Return how many vectors there are. Raises: ConfigError"""
        count: int = setting(Path(), config, NUM_TOKENS, int, 0)
        if count < 1:
            raise ConfigError(
                f"{count} is not a number of vectors.", where=f"{CONFIG}: {NUM_TOKENS}"
            )
        return count
