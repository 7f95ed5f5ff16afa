"""MlpSpeculator: a small recurrent network over the last hidden state and the tokens guessed.

Format: the checkpoints of ibm-ai-platform (speculator.emb, proj, head, ln per place).
Source: Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators",
2024.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters import _settings

if TYPE_CHECKING:
    import torch
    from torch import nn

_NUMBERED = re.compile(r"(?:speculator\.)?(emb|proj|head|ln)\.(\d+)\.(weight|bias)")


class MlpSpeculator(WorkerDrafter):
    """A state, plus a term of the last token, gives the next state and its logits."""

    info = Info(
        summary="drafts with a recurrent network on the last hidden state (IBM's accelerators)",
        source="https://arxiv.org/abs/2404.19124",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "by_depth"})
    example_settings = {"n_predict": 3, "inner_dim": 24}

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings, the size of hidden states under its usual name."""
        found = _settings.beside(target, raw, "MLPSpeculatorPreTrainedModel")
        _settings.count(raw, ("n_predict",), "how many tokens are guessed")
        return {**found, "hidden_size": raw.get("emb_dim") or target.hidden_size}

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return 0: nothing is cached per token."""
        return 0

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._head_modules import MlpModule

        config = context.build.model.hf_config
        _settings.check_length(context.max_draft_tokens, int(config["n_predict"]))
        self._module = MlpModule(context.build)

    def module(self) -> nn.Module:
        """Return the network."""
        return self._module

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the tensors on, of those that are tied the first one of each."""
        for name, tensor in found:
            numbered = _NUMBERED.fullmatch(name)
            if numbered is None:
                yield name, tensor
            elif int(numbered[2]) < self._module.num_of(numbered[1]):
                yield f"{numbered[1]}.{numbered[2]}.{numbered[3]}", tensor

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the next states. Shapes: token_ids [T], states [T, E or inner] -> [T, inner]"""
        assert states is not None, "it continues hidden states"
        return self._module(token_ids, states, depth)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the logits of a place. Shapes: [S, inner] -> [S, V]"""
        return self._module.logits(states, depth)
