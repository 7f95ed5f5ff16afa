"""TransformersBacked: a causal model of transformers over dovetail's attention, cache and linears.

The model's own code between its attention calls is unchanged. Unsupported models are refused with
the reason, whatever transformers raises: see `_hf_build`.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder_head import class_score, generates
from dovetail.layers.linear.placement import WeightHolder
from dovetail.layers.stages import AbsentStage, Stage
from dovetail_plugins.models._hf_build import Built, build
from dovetail_plugins.models._hf_head import is_text_part
from dovetail_plugins.models._hf_stored import PlainTables
from dovetail_plugins.models._hf_swap import store_buffers

log = logging.getLogger(__name__)

IGNORED = ("rotary_emb.inv_freq", ".attn.masked_bias", ".attention.masked_bias", "mtp.")
"""Parts of names that hold no weight of the model: tables and masks that old checkpoints have, and
layers for further tokens."""
TEXT_PARTS = (
    *("model.language_model.", "language_model.model.", "language_model."),
    *("model.text_model.", "text_model."),
)
"""Paths of the text part's trunk in models that take images or sound."""
TEXT_HEAD = "language_model.lm_head."
OTHER_PARTS = (
    *("vision_tower.", "vision_model.", "vision_embedder.", "vision_embed_tokens.", "visual."),
    *("image_tower.", "video_tower.", "vision_encoder.", "vision_projection."),
    *("audio_tower.", "audio_model.", "audio_encoder.", "embed_vision.", "embed_audio."),
    *("visual_embeddings_table.", "projector.", "image_newline", "connector.", "aligner."),
    *("high_res_vision", "language_projection.", "generation_", "vqmodel."),
    "patch_merge_mlp.",
)
"""The parts of such models that text does not pass through."""


class GivenStates(nn.Module):
    """Replaces the trunk inside transformers' causal model and returns given hidden states.

    `kind` is the class that the trunk itself returns, so that the head finds all its fields.
    """

    hidden: torch.Tensor

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the given states, as the trunk would return them."""
        return self.kind(last_hidden_state=self.hidden)


class TransformersBacked(nn.Module, Model):
    """transformers' trunk and head around dovetail's attention."""

    whole_because = "transformers builds all layers"
    info = Info(
        summary="any causal model of transformers, with dovetail's attention and linear layers",
        source="https://huggingface.co/docs/transformers/attention_interface",
    )

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        built = self.built(context)
        self.trunk_name, self.first_position = built.trunk_name, built.first_position
        head = built.head.module
        self.tied = dict(head.all_tied_weights_keys) if generates(context.model) else {}
        self.renamings, self.conversion = built.renamings, built.conversion
        self.inputs_first = _also_before(self.renamings, built.inputs_first)
        self.is_text_part = is_text_part(type(built.causal).__name__, context.model.architecture)
        if self.is_text_part:
            log.warning(
                "of %s only the text part is served: it gets no images and no sound",
                context.model.architecture,
            )
        self.trunk: nn.Module = built.trunk
        self.call = built.call
        # The head's own code (scales, soft caps) runs unchanged, on given hidden states.
        self.given = GivenStates(built.head.output)
        self.head: Any = built.head.module
        self.head.set_submodule(built.head.below, self.given)
        if not generates(context.model):
            self.head = _without_weights(built.head.module)
        width = int(built.hidden_size)
        self.score = class_score(context, Stage(context), in_size=width)
        store_buffers(self)
        _widen(self, built)

    def built(self, context: BuildContext) -> Built:
        """Return transformers' model. Raises: ConfigError"""
        return build(context)

    def weight_map(self) -> WeightMap:
        """Return the names: the trunk's prefix may be absent, everything else is the head's."""
        trunk = [(f"{self.trunk_name}.", "trunk.")]
        if self.is_text_part:
            outer = [(part, "trunk.") for part in TEXT_PARTS]
            trunk = [(TEXT_HEAD, "head.lm_head."), *outer, *trunk]
        bare = [(f"{name}.", f"trunk.{name}.") for name, _ in self.trunk.named_children()]
        own = [(name, f"trunk.{name}") for name, _ in self.trunk.named_parameters(recurse=False)]
        names = [name for name, _ in self.head.named_children() if name != self.trunk_name]
        head = [(f"{name}.", f"head.{name}.") for name in names]
        head += [(name, f"head.{name}") for name, _ in self.head.named_parameters(recurse=False)]
        head += [("classifier.", "score.")]
        places = (*trunk, *head, *(pair for pair in (*bare, *own) if pair[0] not in dict(head)))
        starts = [(old, renamed(new, places)) for old, new in self.renamings if old[0] == "^"]
        return WeightMap(
            prefixes=(*((old[1:], new) for old, new in starts), *places),
            renames=tuple((old, new) for old, new in self.renamings if old[0] != "^"),
            ignored=(*IGNORED, *(OTHER_PARTS if self.is_text_part else ())),
            tied={renamed(a, places): renamed(b, places) for a, b in self.tied.items()},
            transposed=self.inputs_first,
            conversion=PlainTables(self, lambda name: renamed(name, places), self.conversion),
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        out = self.call(token_ids, positions + self.first_position)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        self.given.hidden = hidden.unsqueeze(0)
        dummy = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self.head(input_ids=dummy, use_cache=False).logits[0]
        return logits

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes. Shapes: pooled [S, E] -> [S, C]"""
        found: torch.Tensor = self.score(pooled)
        return found


def _without_weights(causal: nn.Module) -> nn.Module:
    """Return a placeholder for an unneeded head: its parts without weights."""
    return nn.ModuleDict({name: AbsentStage() for name, _ in causal.named_children()})


def _widen(module: nn.Module, built: Built) -> None:
    """Store in float32 what transformers stores in it whatever the model's type, except dovetail's
    layers. Mutates: module"""
    words = tuple(built.causal._keep_in_fp32_modules_strict or ())
    for path, owner in module.named_modules():
        if isinstance(owner, WeightHolder):
            continue
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.is_floating_point() and any(f".{w}." in f".{path}.{name}." for w in words):
                parameter.data = parameter.data.float()


def _also_before(renamings: list[tuple[str, str]], ends: tuple[str, ...]) -> tuple[str, ...]:
    """Return ends of names and what renamings make of the same names."""
    return (*ends, *(old for old, new in renamings if ends and new.endswith(ends)))


def renamed(name: str, places: tuple[tuple[str, str], ...]) -> str:
    """Return a parameter's name in this module."""
    for old, new in places:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
