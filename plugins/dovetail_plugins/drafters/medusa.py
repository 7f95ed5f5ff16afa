"""Medusa: heads on the last hidden state, each guessing one token further ahead.

Format: the checkpoints of FasterDecoding/Medusa ({head}.{block}.linear.weight and
{head}.{blocks}.weight), and the names blocks.i.layers.j.weight, lm_heads.i.weight.
Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework", 2024.
"""

from __future__ import annotations

import logging
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

log = logging.getLogger(__name__)
CHOICES = "medusa_choices"
"""The places of a tree of drafts in published checkpoints (docs/explanation/speculation.md)."""
HEADS = ("medusa_num_heads", "num_heads")
_ORIGINAL = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)")
_RENAMED = re.compile(r"(?:blocks|lm_heads)\.(\d+)\..*")


class Medusa(WorkerDrafter):
    """The tokens in between play no part, so all heads read the same state."""

    info = Info(
        summary="drafts with heads on the last hidden state, one for each place (Medusa)",
        source="https://arxiv.org/abs/2401.10774",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "by_depth"})
    example_settings = {"medusa_num_heads": 3, "medusa_num_layers": 1}

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings; "num_hidden_layers" of such a checkpoint counts its blocks."""
        num_heads = _settings.count(raw, HEADS, "how many heads there are")
        names = ("medusa_num_layers", "num_hidden_layers")
        num_blocks = _settings.count({"medusa_num_layers": 1, **raw}, names, "the blocks of a head")
        if raw.get(CHOICES) is not None:
            log.info(
                "%s of the drafter's config.json (a tree of %d drafts) is not followed: of each "
                "head its most likely token is verified, one draft after the other. On a CPU such "
                "a chain is the best tree that pays.",
                CHOICES,
                len(raw[CHOICES]),
            )
        found = _settings.beside(target, raw, "MedusaModel")
        return {**found, "medusa_num_heads": num_heads, "medusa_num_layers": num_blocks}

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return 0: nothing is cached per token."""
        return 0

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._head_modules import MedusaModule

        config = context.build.model.hf_config
        self._num_heads = int(config["medusa_num_heads"])
        _settings.check_length(context.max_draft_tokens, self._num_heads)
        self._num_blocks = int(config["medusa_num_layers"])
        self._module = MedusaModule(context.build, self._num_heads, self._num_blocks)

    def module(self) -> nn.Module:
        """Return the heads."""
        return self._module

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the tensors on by one way of naming, without heads that are not counted."""
        for name, tensor in found:
            path = self._renamed(name)
            numbered = _RENAMED.fullmatch(path)
            if numbered is None or int(numbered[1]) < self._num_heads:
                yield path, tensor

    def _renamed(self, name: str) -> str:
        old = _ORIGINAL.fullmatch(name)
        if old is None:
            return name
        head, place, leaf = int(old[1]), int(old[2]), old[3]
        if place == self._num_blocks:
            return f"lm_heads.{head}.{leaf}"
        return f"blocks.{head}.layers.{place}.{leaf}"

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the states unchanged. Shapes: states [T, E] -> [T, E]"""
        assert states is not None, "it continues hidden states"
        return states

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the logits of one head. Shapes: [S, E] -> [S, V]"""
        return self._module(states, depth)
