"""Models with an encoder of texts and one of images, whose vectors are in one space.

Both are transformers' modules with dovetail's linear layers. A prompt is a text or one image. The
texts of a step run as one batch, and a text's vector is repeated for all its tokens; an image is
one token, whose vector its encoder makes.
Sources: Radford et al., CLIP, 2021; Zhai et al., SigLIP, 2023; Tschannen et al., SigLIP 2, 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.context import step_media
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.models._hf_names import encoder_names
from dovetail_plugins.models._one_by_one import OneByOne
from dovetail_plugins.models._towers import exchange

OPENED = "patch_embedding"
"""The end of the name of a matrix whose weight transformers' code may read directly."""


class DualEncoder(OneByOne, nn.Module, Model):
    """Vectors of texts and of images."""

    capabilities = frozenset({"media", "needs_host_rows"})
    whole_because = "transformers builds all layers"
    info = Info(
        summary="CLIP, SigLIP, SigLIP 2: vectors of texts and images",
        source="https://arxiv.org/abs/2103.00020",
    )
    _is_spatial = False

    def __init__(self, options: Any, context: BuildContext) -> None:
        """Create the layers. Raises: ConfigError for settings that transformers does not know"""
        super().__init__()
        spec = context.model
        self._dtype = dtype_of(spec.dtype)
        fields = dict(spec.whole_config)
        try:
            config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
            with no_init_weights(), torch.device(context.device):
                full: Any = transformers.AutoModel.from_config(config, dtype=self._dtype)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"transformers cannot make this model: {error}.", where=f"{spec.path}: config.json"
            ) from error
        names = full.named_modules()
        opened = [m for path, m in names if path.endswith(OPENED) and type(m) is nn.Linear]
        exchange(context, full, "", config, opened)
        self.encoder: Any = full.eval().requires_grad_(False)
        text = config.text_config
        self._size = int(fields.get("projection_dim") or _size_of(text))
        self._length = self.padded_length(spec.max_position_tokens)
        # After a text that is read from left to right, padding is seen by nothing.
        self._padding = int(text.eos_token_id == 0)
        if self._length:
            self._padding = padding_id(Path(spec.path), text.pad_token_id)

    def padded_length(self, max_tokens: int) -> int:
        """Return the length to which texts are padded (0: not at all)."""
        return 0

    def weight_map(self) -> WeightMap:
        """Return transformers' names."""
        return WeightMap(
            prefixes=encoder_names(self.encoder, to="encoder."), ignored=("position_ids",)
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the vector of each token's prompt. Shapes: token_ids, positions [T] -> [T, D]"""
        starts = (positions == 0).nonzero().flatten().tolist()
        counts = [end - start for start, end in pairwise([*starts, len(token_ids)])]
        media = step_media()
        found: dict[int, torch.Tensor] = {}
        if media is not None:  # those of images that could not be encoded have another width
            vectors = F.pad(media.vectors, (0, self._size))[:, : self._size]
            found = dict(zip(media.places.tolist(), vectors, strict=True))
        texts = dict(zip(starts, token_ids.split(counts), strict=True))
        texts = {start: one for start, one in texts.items() if start not in found}
        if texts:
            found |= zip(texts, self._of_texts([*texts.values()]), strict=True)
        pairs = zip(starts, counts, strict=True)
        return torch.cat([found[start].expand(count, -1) for start, count in pairs])

    def _of_texts(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the vectors of texts. Shapes: texts [n] each -> [number of texts, D]"""
        length = self._length or max(map(len, texts))
        padded = [F.pad(one, (0, length - len(one)), value=self._padding) for one in texts]
        ids = torch.stack(padded)
        vectors: torch.Tensor = self.encoder.get_text_features(input_ids=ids).pooler_output
        return vectors

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return the vectors of images, those of one shape together. Shapes: each [1, D]"""
        shapes = {tuple(value.shape for value in one.values()) for one in features}
        if len(shapes) > 1:
            return super().encode(kind, features)
        joined = {name: torch.cat([one[name] for one in features]) for name in features[0]}
        return self.encode_one(kind, joined).split(1)

    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of images of one shape. Shapes: [number of images, D]"""
        given = {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in features.items()
        }
        vectors: torch.Tensor = self.encoder.get_image_features(**given).pooler_output
        return vectors


class PaddedDualEncoder(DualEncoder):
    """SigLIP and SigLIP 2, which were trained with texts padded to their full length, and without a
    mask; the last of these tokens sums the text up."""

    info = Info(summary="SigLIP and SigLIP 2", source="https://arxiv.org/abs/2303.15343")

    def padded_length(self, max_tokens: int) -> int:
        """Return the length to which texts are padded: the longest."""
        return max_tokens


def _size_of(text: Any) -> int:
    """Return the size of a vector, by the settings of the encoder of texts."""
    sizes = (getattr(text, name, None) for name in ("projection_size", "projection_dim"))
    return int(next((size for size in sizes if size), text.hidden_size))


def padding_id(folder: Path, usual: int | None) -> int:
    """Return the token with which a checkpoint's tokenizer pads, `usual` if its files do not say.

    Raises: ConfigError if nothing says
    """
    settings = read_json(folder / "tokenizer_config.json", is_required=False)
    word = settings.get("pad_token")
    word = word.get("content") if isinstance(word, dict) else word
    known = {
        one.get("content"): int(number)
        for number, one in (settings.get("added_tokens_decoder") or {}).items()
    }
    tokens = read_json(folder / "tokenizer.json", is_required=False)
    known |= {one["content"]: one["id"] for one in tokens.get("added_tokens", ())}
    found = known.get(word, usual)
    if found is None:
        raise ConfigError(
            "nothing says with which token texts are padded.",
            where=str(folder / "tokenizer_config.json"),
            fix="fetch the file again; it names the pad_token.",
        )
    return found
