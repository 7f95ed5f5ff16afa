"""An encoder of transformers with empty weights, after a trial call, or why it is not served.

Refused with a reason: encoder-decoders, models that shorten or lengthen a text, need more than
token ids, or change their own settings while they run, and configs that transformers cannot build.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights

from dovetail.config.checkpoint.labels import labels
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import CLASSES, NOTHING, TOKEN_CLASSES, ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.models._hf_attention import opening
from dovetail_plugins.models._hf_build import refusal, refusing
from dovetail_plugins.models._hf_conversion import Conversion, conversion_of
from dovetail_plugins.models._hf_names import plain_renamings
from dovetail_plugins.models._hf_swap import swap_layers

TYPES, MASK = "token_type_ids", "attention_mask"
CLASS_ENDS = {CLASSES: "ForSequenceClassification", TOKEN_CLASSES: "ForTokenClassification"}
_TRIAL_LENGTHS = (8, 11)
_TABLES = re.compile(r"(position_ids|token_type_ids|inv_freq|embeddings_project\.position_ids)$")
"""Ends of names of computed tables that old checkpoints hold."""


class TextCall:
    """Calls a model of transformers with one text, so that no text is padded or masked."""

    def __init__(self, model: Any, head: str) -> None:
        self._model, self._head = model, head
        taken = inspect.signature(model.forward).parameters
        self._has_mask = MASK in taken
        self._has_types = TYPES in taken and _num_types(model.config) > 1

    def __call__(self, token_ids: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
        """Return the last hidden states of a text, or each token's classes; a text's classes are
        repeated for every token. `second` marks the tokens of a second text.
        Shapes: token_ids, second [T] -> [T, E or C]"""
        ids = token_ids.unsqueeze(0)
        more: dict[str, torch.Tensor] = {MASK: torch.ones_like(ids)} if self._has_mask else {}
        if self._has_types:
            more[TYPES] = torch.zeros_like(ids) if second is None else second.unsqueeze(0)
        output = self._model(input_ids=ids, **more)
        found: torch.Tensor = output.last_hidden_state if self._head == NOTHING else output.logits
        return found.expand(len(token_ids), -1) if self._head == CLASSES else found[0]


def _num_types(config: Any) -> int:
    return int(getattr(config, "type_vocab_size", None) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEncoder:
    """transformers' model, which makes `size` numbers for a token. `starts` are prefixes of names
    in checkpoints that the model's own names lack, `renamings` plain-text renamings of checkpoint
    names, and `conversion` does the rest."""

    model: Any
    call: TextCall
    size: int
    starts: tuple[str, ...]
    renamings: list[tuple[str, str]]
    conversion: KnownTensors


def build_encoder(context: BuildContext) -> BuiltEncoder:
    """Return the model with empty weights. Raises: ConfigError with the reason."""
    spec = context.model
    if context.rank.tensor_size > 1:
        raise refusal(spec, "its layers cannot be divided over ranks yet")
    if "model_type" not in spec.hf_config:
        raise refusal(spec, 'its config has no "model_type"')
    if spec.is_causal:
        raise refusal(spec, "its type is not known as one whose tokens see all others")
    model = _empty_model(context)
    if model.config.is_encoder_decoder:
        raise refusal(spec, "it is an encoder-decoder")
    call = TextCall(model, spec.head)
    with refusing(spec, "it does not run in a trial call"), opening(model) as opened:
        _try(context, model, call)
    with refusing(spec, "its layers cannot be exchanged"):
        conversion = conversion_of(model, model)
        swap_layers(context, model, "", exempt=frozenset(opened))
    starts = (f"{model.base_model_prefix}.",) if spec.head == NOTHING else ()
    renamings = [*plain_renamings(model), *_old_names(model)]
    return BuiltEncoder(
        model=model,
        call=call,
        size=_size(spec),
        starts=starts,
        renamings=renamings,
        conversion=KnownTensors(model, conversion, drops_others=spec.head == NOTHING),
    )


def _empty_model(context: BuildContext) -> Any:
    """Return transformers' model of what is wanted. Raises: ConfigError"""
    spec = context.model
    with refusing(spec, "transformers cannot make it from this config.json"):
        fields = own_fields(spec)
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        kind = _class_of(spec, config)
        has_pooler = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
        more = {"add_pooling_layer": False} if has_pooler and spec.head == NOTHING else {}
        with no_init_weights(), torch.device(context.device):
            model = kind._from_config(config, dtype=dtype_of(spec.dtype), **more)
        model.to(context.device)  # some make numbers where no default reaches
        model.tie_weights()
    return model.eval().requires_grad_(False)


def _class_of(spec: ModelSpec, config: Any) -> Any:
    """Return the class that computes what is wanted. Raises: ConfigError"""
    if spec.head == NOTHING:
        found = transformers.AutoModel._model_mapping[type(config)]
        kinds = {one.__name__: one for one in (found if isinstance(found, tuple) else (found,))}
        return kinds.get(spec.architecture) or next(iter(kinds.values()))
    end = CLASS_ENDS.get(spec.head, "")
    if not end or not spec.architecture.endswith(end):
        raise ConfigError("the checkpoint has nothing that tells such classes.")
    return getattr(transformers, spec.architecture)


def own_fields(spec: ModelSpec) -> dict[str, Any]:
    """Return config.json's fields, without what was added to it under usual names."""
    facts, config = facts_of(spec.hf_config), dict(spec.hf_config)
    for usual, own in facts.attribute_map.items():
        if own in config:
            config.pop(usual, None)
    for name, value in facts.defaults.items():
        if config.get(name) == value and name != "model_type":
            config.pop(name)
    return {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype", "auto_map")}


def _try(context: BuildContext, model: Any, call: TextCall) -> None:
    """Raises: ConfigError for an output that is not one for each token, or of another size than the
    config says; for a model that changes its settings. Raises what its code raises, too."""
    before, wide = model.config.to_dict(), _size(context.model)
    for count in _TRIAL_LENGTHS:
        ids = torch.full((count,), _token(model.config), device=context.device)
        with torch.inference_mode():
            shape = tuple(call(ids, None).shape)
        if shape != (count, wide):
            raise ConfigError(
                f"of {count} tokens it makes numbers of the shape {list(shape)}, "
                f"not {[count, wide]}."
            )
    if model.config.to_dict() != before:
        raise ConfigError("it changes its own settings while it runs.")


def _old_names(model: Any) -> list[tuple[str, str]]:
    """Return the (old, new) names of norms' weights in checkpoints of TensorFlow, unless the model
    has parameters of the old names."""
    pairs = [(".gamma", ".weight"), (".beta", ".bias")]
    own = [path for path, _ in model.named_parameters()]
    return [(old, new) for old, new in pairs if not any(old in path for path in own)]


def _size(spec: ModelSpec) -> int:
    """Return how many numbers the model makes for a token."""
    return spec.hidden_size if spec.head == NOTHING else len(labels(spec.hf_config))


def _token(config: Any) -> int:
    """Return a token that is not padding, which some models do not count."""
    return 1 if getattr(config, "pad_token_id", None) == 0 else 0


class KnownTensors:
    """Passes the tensors of a checkpoint that a model has. Others are dropped if the model is the
    part below a head (`drops_others`), or if transformers drops them too; the rest are passed on,
    to be reported."""

    def __init__(self, model: Any, inner: Conversion | None, *, drops_others: bool) -> None:
        self._inner, self._drops_others = inner, drops_others
        self._start = f"{model.base_model_prefix}."
        self._own = {path for path, _ in model.named_parameters()} | set(model.state_dict())
        words = model._keys_to_ignore_on_load_unexpected or ()
        self._ignored = [_TABLES, *map(re.compile, words)]
        self._renamings, self._old_names = plain_renamings(model), _old_names(model)

    def __call__(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that are loaded. Raises: ConfigError as Conversion does"""
        for name, tensor in tensors if self._inner is None else self._inner(tensors):
            if self._is_own(name) or not self._is_dropped(name):
                yield name, tensor

    def _is_own(self, name: str) -> bool:
        for old, new in self._old_names:
            name = name.replace(old, new)
        return not self._own.isdisjoint((name, name.removeprefix(self._start)))

    def _is_dropped(self, name: str) -> bool:
        if self._drops_others:
            return not any(old.lstrip("^") in name for old, _ in self._renamings)
        return any(pattern.search(name) for pattern in self._ignored)
