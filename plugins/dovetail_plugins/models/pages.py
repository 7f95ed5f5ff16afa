"""ColPali, ColQwen2 and ColModernVBERT: a vector of each token of a query, and of a page as a
picture, for late interaction.

The model below is dovetail's own, with one more matrix behind it. Positions are those of tokens
alone, also within pictures, as transformers has it.
Source: Faysse et al., ColPali, 2024, https://arxiv.org/abs/2407.01449.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import msgspec
import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media import PartPlace
from dovetail.interfaces.data.spec import NOTHING, ModelSpec
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.linear import ReplicatedLinear
from dovetail_plugins.models._media import MediaModel
from dovetail_plugins.published.pages import BELOW

STARTS = {
    "vlm.language_model.model.": "model.language_model.",
    **dict.fromkeys(("vlm.model.", "vlm.", "model."), "model."),
}
"""What the names of the model below begin with in checkpoints -> on its own."""
MATRIX = "embedding_proj_layer."


class PageModel(MediaModel):
    """A model of images and text whose hidden states become vectors. `text_classes` are the classes
    of text models by their types."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel", "media"})
    text_classes: ClassVar[dict[str, str]] = {}

    def __init__(self, options: Any, context: BuildContext) -> None:
        """Create the layers. Raises: ConfigError"""
        model = context.model
        below = msgspec.structs.replace(
            model, whole_config=dict(model.whole_config[BELOW]), head=NOTHING
        )
        super().__init__(options, replace(context, model=below))
        size = int(model.hf_config["dim"])
        self.vectors = ReplicatedLinear(context, "vectors", model.hidden_size, size, bias=True)

    @classmethod
    def text_plugin(cls, model: ModelSpec) -> type[Model]:
        """Return the class of the text model. Raises: ConfigError for an unknown one"""
        model_type = str(model.hf_config.get("model_type"))
        if model_type not in cls.text_classes:
            raise ConfigError(
                f"its text model is of the type {model_type!r}.",
                where=f"{model.path}: {BELOW}.text_config.model_type",
                fix=f"supported are {', '.join(cls.text_classes)}.",
            )
        return cast(type[Model], registry.load("model", cls.text_classes[model_type]))

    def weight_map(self) -> WeightMap:
        """Return the names of the model below, and of the matrix."""
        below = super().weight_map()
        return replace(
            below, prefixes=((MATRIX, "vectors."), *below.prefixes), conversion=_of_below
        )

    def prompt_positions(
        self, num_tokens: int, parts: Sequence[PartPlace]
    ) -> tuple[torch.Tensor, int] | None:
        """Return None: positions are the indices of tokens."""
        return None

    def task_states(
        self, task: str, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return the vectors of a prompt's tokens. Shapes: states [n, E] -> [n, O]"""
        vectors: torch.Tensor = self.vectors(states)
        return vectors


def _of_below(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors with the names that the model below has on its own."""
    for name, tensor in tensors:
        start = next((one for one in STARTS if name.startswith(one)), None)
        if "lm_head." not in name:
            yield (name if start is None else STARTS[start] + name.removeprefix(start)), tensor


class ColPaliForRetrieval(PageModel):
    """ColPali: PaliGemma, whose tokens all see each other."""

    info = Info(summary="ColPali", source="https://arxiv.org/abs/2407.01449")
    text_classes: ClassVar = {"gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM"}


class ColQwen2ForRetrieval(PageModel):
    """ColQwen2 and ColQwen2.5: Qwen2-VL and Qwen2.5-VL."""

    info = Info(summary="ColQwen2 and ColQwen2.5", source="https://arxiv.org/abs/2407.01449")
    text_classes: ClassVar = dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"), "Qwen2ForCausalLM"
    )


class ColModernVBertForRetrieval(PageModel):
    """ColModernVBERT: SigLIP's tiles of an image before ModernBERT."""

    info = Info(summary="ColModernVBERT", source="https://arxiv.org/abs/2510.01149")
    text_classes: ClassVar = {"modernbert": "ModernBertModel"}
    text_names: ClassVar[tuple[str, ...]] = ("text_model",)
    text_parts: ClassVar[tuple[str, ...]] = ()
