"""MediaModel: a text model of ours with an encoder of images or sound in front.

The encoder and its projection to the text model are transformers' modules with dovetail's linear
layers; the text model is the plugin of its own family. A family derives from MediaModel and names
that plugin if transformers' tables do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import msgspec
import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.media import SpatialRotary
from dovetail.layers.stages import AbsentStage, stage_of
from dovetail_plugins.models._hf_names import encoder_names
from dovetail_plugins.models._one_by_one import OneByOne
from dovetail_plugins.models._towers import exchange

TEXT_NAMES = (
    *(("model.language_model.", "text.model."), ("language_model.model.", "text.model.")),
    ("model.text_model.", "text.model."),
    *(("language_model.lm_head.", "text.lm_head."), ("lm_head.", "text.lm_head.")),
)
"""Name prefixes of the text model in checkpoints."""
TEXT_PARTS = ("layers", "embed_tokens", "norm")
"""The parts of a text model, in checkpoints that name it "model"."""


class MediaModel(OneByOne, nn.Module, Model):
    """An encoder and a text model. `text_class` is the class under which the text model's plugin is
    registered ("": from transformers' table of causal models), `text_names` the names of its parts
    in transformers' model, `text_parts` those in checkpoints that name it "model", `opened` the
    encoder's linear layers whose weights its own code reads directly. In a pipeline the encoder is
    on the stages whose layers take vectors: the first, and later ones for deep vectors."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"tensor_parallel", "pipeline_parallel", "media", "vectors"}
    )
    text_class: ClassVar[str] = ""
    text_names: ClassVar[tuple[str, ...]] = ("language_model",)
    opened: ClassVar[tuple[str, ...]] = ()
    text_parts: ClassVar[tuple[str, ...]] = TEXT_PARTS

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        plugin = self.text_plugin(context.model)
        name = plugin.__name__
        model = msgspec.structs.replace(context.model, architecture=name, whole_config={})
        _check_stages(context, plugin)
        self.text = cast(Any, plugin(None, replace(context, model=model)))
        self.no_graphs_because = self.text.no_graphs_because
        self.takes_media = self._takes_media(context)
        self.encoder = build_encoder(context, self, is_here=self.takes_media)
        self._encoder_names = encoder_names(self.encoder, to="encoder.")
        if not self.takes_media:
            self.encoder = AbsentStage()
        self._dtype, self._size = dtype_of(context.model.dtype), context.model.hidden_size
        rotaries = (m for m in self.text.modules() if isinstance(m, SpatialRotary))
        self._is_spatial = next(rotaries, None) is not None

    @classmethod
    def text_plugin(cls, model: ModelSpec) -> type[Model]:
        """Return the class of the text model. Raises: ConfigError"""
        name = cls.text_class or _causal_class(model)
        return cast(type[Model], registry.load("model", name))

    def weight_map(self) -> WeightMap:
        """Return the names: transformers' for the encoder, and the plugin's own after "text." for
        the text model."""
        text = [(f"model.{name}.", f"text.model.{name}.") for name in self.text_parts]
        return WeightMap(
            prefixes=(*TEXT_NAMES, *self._encoder_names, *text),
            ignored=("rotary_emb.inv_freq", "position_ids"),
            parts={"text.": self.text.weight_map()},
        )

    def _takes_media(self, context: BuildContext) -> bool:
        """Return whether layers of this rank's stage take vectors of media."""
        stage = stage_of(self.text)
        if stage is None or stage.is_first:
            return True
        vision = context.model.whole_config.get("vision_config") or {}
        return stage.numbers.start < len(vision.get("deepstack_visual_indexes") or ())

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        hidden: torch.Tensor = self.text(token_ids, positions)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        logits: torch.Tensor = self.text.logits(hidden)
        return logits

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content. Shapes: [rows, E]"""
        return joined(self.outputs(kind, features))

    def outputs(self, kind: str, features: Mapping[str, torch.Tensor]) -> Any:
        """Return the output of transformers' encoder for a media item."""
        method = getattr(self.encoder, f"get_{kind}_features")
        return method(**self.given(features), return_dict=True)

    def given(self, features: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return features in the type of the model."""
        return {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in features.items()
        }


def _check_stages(context: BuildContext, text: type[Model]) -> None:
    """Raise ConfigError if the text model cannot be divided into the configured stages."""
    if context.rank.num_stages > 1 and "pipeline_parallel" not in text.capabilities:
        raise ConfigError(
            f"the text model {text.__name__} cannot be divided into stages: {text.whole_because}.",
            where="--pipeline-parallel-size",
            fix="use 1, or divide each layer with --tensor-parallel-size.",
        )


def build_encoder(context: BuildContext, family: MediaModel, *, is_here: bool = True) -> nn.Module:
    """Return transformers' model without its text model, with empty weights; if not `is_here`,
    without memory, for its names only."""
    whole = dict(context.model.whole_config)
    config = transformers.AutoConfig.for_model(whole.pop("model_type"), **whole)
    _shrink(config.get_text_config())
    with no_init_weights(), torch.device(context.device if is_here else "meta"):
        full: Any = _below_head(context.model, config)
    for name in family.text_names:
        if name not in full._modules:
            raise ConfigError(
                f"{type(full).__name__} keeps its text model elsewhere than in {name}.",
                where=context.model.path,
            )
        del full._modules[name]
    if not is_here:
        return cast(nn.Module, full)
    exempt = [one for path, one in full.named_modules() if path.endswith(family.opened)]
    exchange(context, full, "model.", config, exempt)
    encoder: nn.Module = full.eval().requires_grad_(False)
    return encoder


def _below_head(model: ModelSpec, config: Any) -> Any:
    """Return transformers' headless model of a config; if the config's type is shared with another
    class, it is made as the checkpoint's class."""
    dtype = dtype_of(model.dtype)
    if type(config) in transformers.AutoModel._model_mapping:
        return transformers.AutoModel.from_config(config, dtype=dtype)
    whole = getattr(transformers, model.architecture)._from_config(config, dtype=dtype)
    return whole.get_submodule(whole.base_model_prefix)


def _shrink(text: Any) -> None:
    """Shrink a text model whose weights are not used. Mutates: text"""
    text.num_hidden_layers = 1
    text.vocab_size, text.pad_token_id = 8, None
    if getattr(text, "num_kv_shared_layers", 0):
        text.num_kv_shared_layers = 0
    if getattr(text, "vocab_size_per_layer_input", None):
        text.vocab_size_per_layer_input = 8
    if getattr(text, "ple_layer_ids", None):
        text.ple_layer_ids = []
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]


def joined(output: Any) -> torch.Tensor:
    """Return the vectors that a method of transformers' models gives. Shapes: [rows, E]"""
    found = getattr(output, "pooler_output", output)
    if isinstance(found, (list, tuple)):
        found = torch.cat([one.flatten(0, -2) for one in found])
    vectors: torch.Tensor = found.flatten(0, -2)
    return vectors


def _causal_class(model: ModelSpec) -> str:
    """Return the causal class of a text model. Raises: ConfigError"""
    model_type = str(model.hf_config.get("model_type"))
    name = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if name is None:
        raise ConfigError(
            f"transformers has no text model of the type {model_type!r}.",
            where=f"{model.path}: text_config.model_type",
            fix="upgrade transformers, or check the settings.",
        )
    return str(name)
