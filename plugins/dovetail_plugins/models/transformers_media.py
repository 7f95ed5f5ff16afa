"""TransformersMedia: a model of transformers that takes images or sound, over dovetail's attention.

Its encoder is transformers' way from features to vectors, its text model what TransformersBacked
runs. Unsupported models are refused with the reason: see `_hf_whole`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from dovetail.config.checkpoint.media_tokens import named_kinds
from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.context import step_media
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.media import with_media
from dovetail_plugins.models._hf_build import Built
from dovetail_plugins.models._hf_names import encoder_names
from dovetail_plugins.models._hf_trial import vectors_of
from dovetail_plugins.models._hf_whole import build_whole
from dovetail_plugins.models._one_by_one import OneByOne
from dovetail_plugins.models.transformers_backed import IGNORED, TransformersBacked, renamed


class TransformersMedia(OneByOne, TransformersBacked):
    """transformers' encoder, text model and head around dovetail's attention."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"media", "vectors"})
    info = Info(
        summary="any model of transformers that takes images or sound, with dovetail's attention",
        source="https://huggingface.co/docs/transformers/tasks/image_text_to_text",
    )

    def built(self, context: BuildContext) -> Built:
        """Return transformers' model, and keep its encoder. Raises: ConfigError"""
        kinds = named_kinds(context.model.whole_config)
        try:
            whole = build_whole(context, kinds)
        except ConfigError as error:
            none = json.dumps(dict.fromkeys(kinds, 0))
            alone = f"serve its text part alone with --limit-mm-per-prompt '{none}', or {error.fix}"
            raise ConfigError(error.what, where=error.where, fix=alone) from error
        base = whole.built.head.below
        self._names = encoder_names(whole.encoder, to="encoder.", start=base)
        self.encoder = whole.encoder
        self._embed: list[Any] = [whole.embed]  # in a list: the trunk has it
        self._takes, self._starts = whole.takes, whole.starts
        self._is_spatial = whole.is_spatial
        self._idle = tuple(f"{name}." for name in whole.idle)
        self._dtype = dtype_of(context.model.dtype)
        return whole.built

    def weight_map(self) -> WeightMap:
        """Return the names of the text model, the head and the encoder."""
        base, _, text = self.trunk_name.partition(".")
        names = [name for name, _ in self.head.named_children() if name != base]
        head = [
            (f"{start}{name}.", f"head.{name}.") for name in names for start in (f"{text}.", "")
        ]
        trunk = [
            (start, "trunk.") for start in (f"{self.trunk_name}.", f"{text}.model.", f"{text}.")
        ]
        own = [name for name, _ in self.trunk.named_children() if name not in self.encoder._modules]
        trunk += [(f"model.{name}.", f"trunk.{name}.") for name in own]  # as if it were alone
        plain = (*head, *trunk, *self._names)
        stored = {old: renamed(new, plain) for old, new in self._starts.items()}
        places = tuple(sorted((dict(plain) | stored).items(), key=lambda pair: -len(pair[0])))
        return WeightMap(
            prefixes=places,
            renames=tuple((old, new) for old, new in self.renamings if old[0] != "^"),
            ignored=(*IGNORED, *self._idle),
            tied={renamed(a, places): renamed(b, places) for a, b in self.tied.items()},
            transposed=self.inputs_first,
            conversion=self.conversion,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        (embed,) = self._embed
        x = with_media(embed(token_ids.clamp(max=embed.num_embeddings - 1)))
        media = step_media()
        places = positions + self.first_position
        if self._is_spatial and media is not None and media.positions is not None:
            places = media.positions
        out = self.trunk(
            inputs_embeds=x.unsqueeze(0), position_ids=places.unsqueeze(-2), use_cache=False
        )
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content. Shapes: [rows, E]"""
        method: Any = getattr(self.encoder, f"get_{kind}_features")
        takes = self._takes[kind]
        given = {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in features.items()
            if name in takes.names
        }
        output = method(**takes.constants, **given)
        return torch.cat([one.flatten(0, -2) for one in vectors_of(output)])
