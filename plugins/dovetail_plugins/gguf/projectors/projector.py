"""Projector: how projector files of one type are read, each with the file of its text model.

Such a file has an encoder of images or sound, and the projection of its vectors to the text
model's hidden size. Source: tools/mtmd/clip-impl.h and the converters of
https://github.com/ggml-org/llama.cpp; ClipVision and ClipAudio in the gguf package's constants.py.
Imports no torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Json = dict[str, Any]
Change = Callable[["torch.Tensor", "Pair"], "torch.Tensor"]
"""Undoes what the converter did to a tensor."""
IMAGE_MEAN = (0.48145466, 0.4578275, 0.40821073)
IMAGE_STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's, for files without them."""
_OWN_KINDS = (2, 3, 4)
"""Kinds of tokens that are cut out of a text before anything else."""
_SPARE = re.compile(r"unused|reserved|placeholder|multimodal|extra_id|\[PAD", re.IGNORECASE)
_UNKNOWN = "tokenizer.ggml.unknown_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorNames:
    """The checkpoint's names of a projector's tensors.

    `block`: GGUF's names in a block, without "v.blk.N." -> the checkpoint's after `blocks`.N;
    `whole`: the other names. A name has its leaf (.weight) in both or in neither. `qkv`: the matrix
    of queries, keys and values together, "" if they are apart. `frames`: the kernel of patches is
    stored as one for each frame. `changes`: GGUF's name -> what turns the tensor into the
    checkpoint's. `unused`: layer norms that the file may lack, since no output depends on them.
    `left_out`: tensors of the file that the checkpoint lacks.
    """

    block: Mapping[str, str]
    blocks: str
    whole: Mapping[str, str]
    qkv: str = ""
    frames: bool = False
    changes: Mapping[str, Change] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def _as_alone(pair: Pair) -> Json:
    """Return the text model's part as it is without a projector."""
    return dict(pair.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """How projector files of one type are read.

    `texts`: general.architecture of the text models that it belongs to. `config`: config.json of
    both files, without the text model's part; `text`: that part. `width`: the tensor whose size
    along the axis is the text model's hidden size. `processor`: processor_config.json, with the
    tokenizer's names of tokens under "tokens". `part`: vision or audio. Projectors of one `family`
    may be in one file ("": it is always alone). `is_backed`: transformers' code runs the text
    model, which takes a token table and a head of plain numbers.
    """

    texts: tuple[str, ...]
    config: Callable[[Pair], Json]
    names: Callable[[Pair], ProjectorNames]
    processor: Callable[[Pair], Json]
    width: tuple[str, int]
    text: Callable[[Pair], Json] = _as_alone
    part: str = "vision"
    family: str = ""
    is_backed: bool = False


class Pair:
    """The file of a text model, with the config.json that it means, and a projector's file."""

    def __init__(self, text: GgufModel, config: Mapping[str, Any], clip: GgufModel) -> None:
        self.text, self.clip = Settings(text), Settings(clip)
        self.config = config

    @property
    def hidden_size(self) -> int:
        """Return the width of the text model."""
        return int(self.config["hidden_size"])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a projector's tensor. Raises: ConfigError"""
        extent = self.clip.tensor(name)
        if extent is None:
            raise self.fault(f"the tensor {name} is missing.")
        return extent.shape

    def has(self, name: str) -> bool:
        """Return whether the projector has a tensor."""
        return self.clip.tensor(name) is not None

    def matrix(self, name: str) -> tuple[int, int]:
        """Return the rows and columns of a projector's matrix. Raises: ConfigError"""
        shape = self.shape(name)
        if len(shape) != 2:
            raise self.fault(f"the tensor {name} is not a matrix.")
        return shape[0], shape[1]

    def is_swapped(self, letter: str = "v") -> bool:
        """Return whether the names of a block's two feed-forward matrices are swapped, as older
        converters wrote them: what is called "down" takes the block's input."""
        width = self.number("embedding_length", letter)
        inputs = self.matrix(f"{letter}.blk.0.ffn_down.weight")[1]
        return inputs == width != self.matrix(f"{letter}.blk.0.ffn_up.weight")[1]

    def inner(self, letter: str = "v") -> int:
        """Return the size inside a block's feed-forward part. Some files state another one."""
        rows, inputs = self.matrix(f"{letter}.blk.0.ffn_up.weight")
        return inputs if self.is_swapped(letter) else rows

    def number(self, name: str, letter: str = "v") -> int:
        """Return a count of the encoder's. Raises: ConfigError"""
        return self.clip.number(f".{'vision' if letter == 'v' else 'audio'}.{name}")

    def find(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a setting of the image encoder, None without it. Raises: ConfigError"""
        return self.clip.find(f".vision.{name}", kind)

    def side(self, scale: int) -> int:
        """Return the vectors along an image's side, of `scale` patches each. Raises: ConfigError"""
        patches = self.number("image_size") // self.number("patch_size")
        if scale < 1 or patches < scale or patches % scale:
            raise self.fault(f"{patches} patches do not divide into groups of {scale}.")
        return patches // scale

    def token(self, *texts: str) -> tuple[int, str]:
        """Return the id and text of a placeholder: the first of the texts in the vocabulary, or
        a spare token. Raises: ConfigError"""
        tokens = self.text.find("tokenizer.ggml.tokens", list) or []
        kinds = self.text.find("tokenizer.ggml.token_type", list) or []
        own = {text: i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
               if kind in _OWN_KINDS}  # fmt: skip
        named = [text for text in texts if text in own]
        spare = [text for text in own if _SPARE.search(text)]
        unknown = self.text.find(_UNKNOWN, int)
        last = tokens[unknown : unknown + 1] if unknown is not None else []
        chosen = next(iter([*named, *spare[-1:], *(text for text in last if text in own)]), None)
        if chosen is None:
            raise ConfigError(
                f"the vocabulary has no token {texts[0]}, and none to spare for it.",
                where=str(self.text.model.path),
                fix="leave the projector out with --no-mmproj, or take another file of the model.",
            )
        if chosen not in texts:
            log.info("The vocabulary has no %s; %s marks the places of media.", texts[0], chosen)
        return own[chosen], chosen

    def required(self, text: str) -> int:
        """Return the id of a token. Raises: ConfigError if the vocabulary lacks it"""
        found = self.token_id(text)
        if found is None:
            raise self.fault(
                f"{self.text.model.path.name} has no token {text}, which this projector needs.",
                fix="take another file of the text model, or leave this out with --no-mmproj.",
            )
        return found

    def token_id(self, text: str) -> int | None:
        """Return the id of a token, None if the vocabulary lacks it."""
        tokens = self.text.find("tokenizer.ggml.tokens", list) or []
        return tokens.index(text) if text in tokens else None

    def small(self, name: str, usual: float) -> float:
        """Return a setting of the image encoder between 0 and 1. Raises: ConfigError"""
        value: float = self.find(name, float) or usual
        if not 0 < value < 1:
            raise self.fault(f"clip.vision.{name} is {value}.")
        return value

    def channels(self, name: str, usual: tuple[float, ...], least: float) -> list[float]:
        """Return a number for each color, at least `least`. Raises: ConfigError"""
        values: list[float] = self.find(name, list) or list(usual)
        if len(values) != 3 or not all(least <= value <= 255 for value in values):
            raise self.fault(f"clip.vision.{name} is {values!r}"[:200] + ".")
        return values

    def fault(self, what: str, fix: str = "download the file again.") -> ConfigError:
        """Return an error about the projector's file."""
        return ConfigError(what, where=str(self.clip.model.path), fix=fix)


def vision(pair: Pair, model_type: str, **more: Any) -> Json:
    """Return the usual settings of an image encoder."""
    return {
        "model_type": model_type,
        "hidden_size": pair.number("embedding_length"),
        "intermediate_size": pair.inner(),
        "num_hidden_layers": pair.number("block_count"),
        "num_attention_heads": pair.number("attention.head_count"),
        "image_size": pair.number("image_size"),
        "patch_size": pair.number("patch_size"),
        "layer_norm_eps": pair.small("attention.layer_norm_epsilon", 1e-6),
        **more,
    }


def activation(pair: Pair, other: str, gelu: str = "gelu") -> str:
    """Return the encoder's activation: `other` if the file names none."""
    if pair.clip.find(".use_silu", bool):
        return "silu"
    return gelu if pair.clip.find(".use_gelu", bool) else other


def pictures(pair: Pair, kind: str, **more: Any) -> Json:
    """Return the settings of an image processor of this class."""
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "image_mean": pair.channels("image_mean", IMAGE_MEAN, 0.0),
        "image_std": pair.channels("image_std", IMAGE_STD, 1e-6),
        **more,
    }


def square(pair: Pair) -> dict[str, int]:
    """Return the size of the encoder's images."""
    return dict.fromkeys(("height", "width"), pair.number("image_size"))


def scale_factor(pair: Pair, usual: int = 2) -> int:
    """Return how many vectors of patches become one along each side of an image."""
    return pair.find("projector.scale_factor", int) or usual


def merge_size(pair: Pair, usual: int = 2) -> int:
    """Return the same as `scale_factor`, of encoders that call it so."""
    return pair.find("spatial_merge_size", int) or usual


def sectioned(pair: Pair, model_type: str, **more: Any) -> Json:
    """Return the text model's settings, whose rotation has three directions. Raises: ConfigError"""
    sections = pair.text.find(".rope.dimension_sections", list)
    if not sections or len(sections) < 3:
        key = f"{pair.text.architecture}.rope.dimension_sections"
        raise pair.fault(
            f"its text model's file has no {key}, which say how places in an image are rotated.",
            fix="convert the text model again with a current llama.cpp.",
        )
    older = pair.config.get("rope_parameters") or pair.config.get("rope_scaling") or {}
    kinds = {"rope_type": "default", **older, "mrope_section": sections[:3], **more}
    theta = pair.config.get("rope_theta") or older.get("rope_theta") or 10000.0
    share = pair.config.get("partial_rotary_factor")
    kinds |= {"rope_theta": theta} | ({} if share is None else {"partial_rotary_factor": share})
    left = {k: v for k, v in pair.config.items() if k not in ("rope_scaling", "rope_theta")}
    return left | {"model_type": model_type, "rope_parameters": kinds}


def turned_back(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return rows whose pairs (2 i, 2 i + 1) of every head become (i, i + half)."""
    heads = pair.number("attention.head_count")
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def batched(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return a tensor with axes of size one before its last two, three in all."""
    return tensor.reshape((1,) * (3 - tensor.dim()) + tuple(tensor.shape))


def flat(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return a vector that is stored with more axes."""
    return tensor.flatten()


def as_rows(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return kernels [O, 3, p, p] as rows of a matrix whose pixels have their colors together."""
    return tensor.permute(0, 2, 3, 1).flatten(1)
