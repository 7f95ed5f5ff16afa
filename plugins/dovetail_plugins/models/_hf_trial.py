"""Trial: a call of transformers' model with two media, to see what its text model receives.

`generate` is called as a user would, with the checkpoint's own processor on blank media, and
stopped at the text model. Products are not computed, and the outputs of encoder and token table
become random numbers, so that what arrives can be told apart.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from dovetail.config.checkpoint.media_tokens import token_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media import PartPlace
from dovetail.interfaces.data.media_settings import AUDIO
from dovetail.interfaces.model import BuildContext
from dovetail.layers.media import spatial_positions
from dovetail.multimodal.extra import package
from dovetail.multimodal.processors import (
    ARGUMENTS,
    TEXT_FIELDS,
    load_processor,
    processor_folder,
    rate_of,
)
from dovetail_plugins.models._hf_attention import Seen

PLAIN = (
    *("inputs_embeds", "attention_mask", "position_ids", "use_cache", "cache", "input_ids"),
    *("return_dict", "output_attentions", "output_hidden_states", "logits_to_keep"),
)
"""Possible arguments of a text model."""
TYPES = "mm_token_type_ids"
"""The argument of models that need to know which tokens are media placeholders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The arguments of the method that encodes a kind of media: features by name, and constants."""

    names: tuple[str, ...]
    constants: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Heard:
    """The records of a trial call."""

    arguments: list[dict[str, Any]] = field(default_factory=list)
    vectors: list[torch.Tensor] = field(default_factory=list)
    embedded: list[torch.Tensor] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)


class _Ended(Exception):
    """The text model has begun."""


class Trial:
    """Calls of one model. `is_spatial`: the positions of media have three directions."""

    def __init__(
        self, context: BuildContext, whole: Any, base: Any, text: nn.Module, kinds: Sequence[str]
    ) -> None:
        self._whole, self._base, self._text = whole, base, text
        self._config = context.model.whole_config
        model_type = str(self._config.get("model_type"))
        folder = processor_folder(context.model)
        self._processor = load_processor(folder, model_type) if kinds else None
        self._dtype = next(whole.parameters()).dtype
        self._device = context.device
        self.is_spatial = False

    def run(self, kind: str) -> Feature:
        """Return the arguments of the encoder of a kind. Raises: ConfigError for a model that
        passes its text model more than vectors for placeholders. Mutates: self"""
        inputs = self._inputs(kind)
        recording = self._recorded_calls(kind, inputs)
        if not recording.vectors:
            raise ConfigError(f"it encodes no {kind} by its get_{kind}_features.")
        feature = _feature(kind, recording.arguments, inputs)
        ids = inputs["input_ids"][0]
        places = ids == token_of(self._config, kind)
        self._check_vectors(kind, recording, places)
        self._check_given(recording.given)
        self._check_positions(kind, recording.given.get("position_ids"), places, inputs)
        return feature

    def _inputs(self, kind: str) -> dict[str, Any]:
        """Return the processor's output for a text with two media, or with one if it takes only one
        per text."""
        media, options = _blank_media(self._processor, kind)
        if TYPES in inspect.signature(self._whole.forward).parameters:
            options["return_mm_token_type_ids"] = True
        inputs = _read_together(self._processor, kind, media, options)
        return {
            name: value.to(self._device) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }

    def _recorded_calls(self, kind: str, inputs: Mapping[str, Any]) -> _Heard:
        """Return the recorded calls and arguments up to the text model."""
        recording = _Heard()
        floats = {
            name: value.to(self._dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }
        listening = _listening(self._whole, self._base, self._text, kind, recording)
        with listening, torch.inference_mode(), _NoProducts(), suppress(_Ended):
            self._whole.generate(**floats, max_new_tokens=1, do_sample=False)
        if recording.given:
            return recording
        raise ConfigError("its text model is not called.")

    def _check_vectors(self, kind: str, recording: _Heard, places: torch.Tensor) -> None:
        """Raises: ConfigError if the text model receives vectors other than the encoder's at media
        positions and the token table's elsewhere."""
        given = recording.given.get("inputs_embeds")
        rows = rows_of(recording.vectors, places)
        if given is None or given.shape[1] != len(places):
            raise ConfigError(f"it does not put the vectors of {kind}s at places of the prompt.")
        same = [one for one in recording.embedded if one.shape == given.shape]
        wanted = same[-1].clone() if same else torch.zeros_like(given)
        if int(places.sum()) != len(rows):
            raise ConfigError(
                f"it has {len(rows)} vectors of two {kind}s, and the prompt {int(places.sum())}"
                " places."
            )
        wanted[0, places] = rows.to(wanted.dtype)
        if not torch.equal(wanted[0, places], given[0, places]):
            raise ConfigError(f"it changes the vectors of {kind}s before its text model.")
        if not torch.equal(wanted, given):
            raise ConfigError("it changes the vectors of tokens before its text model.")

    def _check_given(self, given: Mapping[str, Any]) -> None:
        """Raises: ConfigError for more than vectors and positions."""
        for name, value in given.items():
            if name not in PLAIN and _counts(value):
                raise ConfigError(f"its text model is given {name} beside vectors.")
        masks = given.get("attention_mask")
        for mask in masks.values() if isinstance(masks, Mapping) else [masks]:
            is_plain = isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool(mask.all())
            if mask is not None and not is_plain and not isinstance(mask, Seen):
                raise ConfigError("the tokens of its media see others that come later.")

    def _check_positions(
        self, kind: str, positions: Any, places: torch.Tensor, inputs: Mapping[str, Any]
    ) -> None:
        """Raises: ConfigError for positions other than plain token positions or a grid in three
        directions. Mutates: self"""
        count = len(places)
        plain = torch.arange(count, device=self._device)
        if positions is None or torch.equal(
            positions[..., 0, :], plain.expand(positions[..., 0, :].shape)
        ):
            return
        if positions.dim() != 3 or positions.shape[0] not in (3, 4):
            raise ConfigError("it numbers positions in its own way.")
        parts = _parts(kind, places, inputs.get(f"{kind}_grid_thw"), self._merged)
        wanted, _ = spatial_positions(count, parts)
        if not torch.equal(positions[-3:, 0].cpu(), wanted):
            raise ConfigError("it numbers the positions of media in its own way.")
        self.is_spatial = True

    @property
    def _merged(self) -> int:
        return int((self._config.get("vision_config") or {}).get("spatial_merge_size") or 1)


def rows_of(vectors: Sequence[torch.Tensor], places: torch.Tensor) -> torch.Tensor:
    """Return the vectors of all media in a row, without those that pad a medium to the longest.
    Shapes: vectors each [.., E] -> [rows, E]"""
    rows = torch.cat([one.flatten(0, -2) for one in vectors])
    lengths = [sum(1 for _ in run) for is_media, run in groupby(places.tolist()) if is_media]
    each = list(vectors[0]) if len(vectors) == 1 and vectors[0].dim() == 3 else []
    is_padded = len(each) == len(lengths) and len(rows) > sum(lengths)
    return torch.cat([a[:n] for a, n in zip(each, lengths, strict=True)]) if is_padded else rows


def _feature(kind: str, calls: Sequence[dict[str, Any]], inputs: Mapping[str, Any]) -> Feature:
    """Return the arguments of the encoder's one call. Raises: ConfigError"""
    if len(calls) != 1:
        raise ConfigError(f"it encodes two {kind}s in {len(calls)} calls.")
    (call,) = calls
    tensors = [name for name, value in call.items() if isinstance(value, torch.Tensor)]
    odd = [name for name in tensors if name not in inputs or name in TEXT_FIELDS]
    if odd:
        raise ConfigError(f"its encoder is given {odd[0]}, which is not made of a medium alone.")
    constants = {name: value for name, value in call.items() if name not in tensors}
    return Feature(names=tuple(tensors), constants=constants)


def _parts(kind: str, places: torch.Tensor, grids: Any, merged: int) -> list[PartPlace]:
    """Return the places of media by their grids. Raises: ConfigError without them"""
    if grids is None:
        raise ConfigError("it numbers the positions of media without a grid.")
    runs = []
    for is_media, group in groupby(enumerate(places.tolist()), key=lambda pair: pair[1]):
        members = [at for at, _ in group]
        if is_media:
            runs.append((members[0], len(members)))
    shapes = [(t, h // merged, w // merged) for t, h, w in grids.tolist()]
    if len(runs) != len(shapes):
        raise ConfigError("its processor puts text tokens among the vectors of one image or sound.")
    return [
        PartPlace(str(n), kind, (run,), run[1], shape)
        for n, (run, shape) in enumerate(zip(runs, shapes, strict=True))
    ]


def _counts(value: Any) -> bool:
    """Return whether an argument says something."""
    if isinstance(value, (list, tuple, dict)):
        return bool(value)
    return value is not None and value is not False


class _NoProducts(TorchFunctionMode):
    """Linear layers give zeros, of the right shape."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the function's result, or zeros."""
        if func is F.linear and not kwargs:
            x, weight = args[0], args[1]
            return x.new_zeros(*x.shape[:-1], weight.shape[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _listening(
    whole: Any, base: Any, text: nn.Module, kind: str, recording: _Heard
) -> Iterator[None]:
    """Record the arguments and outputs of encoder, token table and text model inside a with block.
    Mutates: heard"""
    name = f"get_{kind}_features"
    method = getattr(base, name, None)
    if method is None:
        raise ConfigError(f"its {kind}s become no vectors in place of tokens (it has no {name}).")
    taken = inspect.signature(method)

    @functools.wraps(method)
    def encode(*args: Any, **kwargs: Any) -> Any:
        bound = taken.bind(*args, **kwargs)
        call = dict(bound.arguments)
        call.update(call.pop("kwargs", {}))
        with _hidden(base, text):
            output = method(*args, **kwargs)
        _fill(output)
        recording.arguments.append(call)
        recording.vectors.extend(vectors_of(output))
        return output

    def embed(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        recording.embedded.append(torch.randn_like(output))
        return recording.embedded[-1].clone()

    def begin(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        recording.given = dict(inspect.signature(text.forward).bind(*args, **kwargs).arguments)
        recording.given.update(recording.given.pop("kwargs", {}))
        raise _Ended

    vars(base)[name] = encode
    hooks = [
        whole.get_input_embeddings().register_forward_hook(embed),
        text.register_forward_pre_hook(begin, with_kwargs=True),
    ]
    try:
        yield
    finally:
        del vars(base)[name]
        for hook in hooks:
            hook.remove()


@contextmanager
def _hidden(base: nn.Module, text: nn.Module) -> Iterator[None]:
    """Take the text model out of a model inside a with block: an encoder is served without it.
    Raises: ConfigError for one that reads it"""
    parts = dict(base._modules)
    name = next(name for name, part in parts.items() if part is text)
    del base._modules[name]
    try:
        yield
    except AttributeError as error:
        if f"'{name}'" not in str(error):
            raise
        raise ConfigError("its encoder reads its text model.") from error
    finally:
        base._modules.clear()
        base._modules.update(parts)


def vectors_of(output: Any) -> list[torch.Tensor]:
    """Return the vectors that a method of transformers' models gives. Shapes: each [.., E]"""
    found = getattr(output, "pooler_output", output)
    if found is None:
        raise ConfigError("its encoder makes no one list of vectors for the places of the prompt.")
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _fill(output: Any) -> None:
    """Replace the vectors of an output by random numbers. Mutates: output"""
    for one in vectors_of(output):
        one.normal_()


def _blank_media(processor: Any, kind: str) -> tuple[list[Any], dict[str, Any]]:
    """Return two blank images or sounds of different sizes, and the options for a processor to read
    them."""
    if kind == AUDIO:
        import numpy

        rate_hz = rate_of(processor)
        sounds = [numpy.zeros(rate_hz // part, dtype=numpy.float32) for part in (1, 2)]
        return sounds, {"sampling_rate": rate_hz}
    images = package("PIL.Image")
    return [images.new("RGB", size) for size in ((64, 64), (112, 64))], {}


def _read_together(
    processor: Any, kind: str, media: list[Any], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a processor's output for a text with several media, passed as a list, or as a list per
    text if the processor requires that. If it takes one medium per text, only the first is read.

    Raises: ConfigError if it has no placeholder for the kind; whatever the processor raises
    """
    place = getattr(processor, f"{kind}_token", None)
    if not isinstance(place, str):
        raise ConfigError(f"its processor has no word for an {kind}.")
    if getattr(processor, f"{kind}_placeholder_token", place) != place:
        raise ConfigError(
            f"its processor has another word for an {kind} than the token of its vectors."
        )
    failure: ValueError | None = None
    for given, count in ((media, len(media)), ([media], len(media)), (media[:1], 1)):
        text = " b ".join(["a", *[place] * count, "c"])
        try:
            output: Mapping[str, Any] = processor(
                text=[text], return_tensors="pt", **{ARGUMENTS[kind]: given}, **options
            )
            return output
        except ValueError as error:
            failure = failure or error
    assert failure is not None
    raise failure
