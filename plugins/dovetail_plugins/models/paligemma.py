"""PaliGemma and PaliGemma 2: SigLIP's patches before a text. All tokens of a prompt see each other;
those of an answer see only earlier ones. The text model is Gemma's or Gemma 2's.

Positions count from 1 in transformers; rotations depend only on distances, so here they count from
0. Source: Beyer et al., PaliGemma, 2024, arXiv 2407.07726.
"""

from __future__ import annotations

from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, Model
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderLayer
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.models.gemma import GemmaForCausalLM
from dovetail_plugins.models.gemma2 import Gemma2ForCausalLM
from dovetail_plugins.models.gemma3 import Gemma3Attention, Gemma3Layer


class PrefixLayer(DecoderLayer):
    """A layer of Gemma's whose attention sees prompts both ways."""

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return Gemma3Attention(context, name, config, layer)


class PrefixGemma(GemmaForCausalLM):
    """Gemma after images."""

    layer_class = PrefixLayer


class PrefixGemma2(Gemma2ForCausalLM):
    """Gemma 2 after images."""

    layer_class = Gemma3Layer


TEXT_MODELS: dict[str, type[Model]] = {"gemma": PrefixGemma, "gemma2": PrefixGemma2}
"""By the model type of the text part."""


class PaliGemmaForConditionalGeneration(MediaModel):
    """PaliGemma with images."""

    info = Info(summary="PaliGemma with images", source="https://arxiv.org/abs/2407.07726")

    @classmethod
    def text_plugin(cls, model: ModelSpec) -> type[Model]:
        """Return the text model. Raises: ConfigError for one that no PaliGemma has"""
        model_type = str(model.hf_config.get("model_type"))
        if model_type not in TEXT_MODELS:
            raise ConfigError(
                f"its text model is of the type {model_type!r}.",
                where=f"{model.path}: text_config.model_type",
                fix=f"supported are {', '.join(TEXT_MODELS)}.",
            )
        return TEXT_MODELS[model_type]
