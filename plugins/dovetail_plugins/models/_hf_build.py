"""A causal model of transformers with dovetail's attention and linear layers in it, or why not.

Refused with a reason: models with a recurrent state (Mamba and similar), encoder-decoders, ALiBi,
models whose attention does not go through transformers' attention interface, and configs that
transformers itself cannot build.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto

from dovetail.config.rules.model.transformers_models import known_classes
from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import CAUSAL, CONFIG
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.layers.decoder_head import generates
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.stages import AbsentStage
from dovetail_plugins.checkpoint_code import load_class
from dovetail_plugins.models import _hf_attention as hf_attention
from dovetail_plugins.models._hf_call import TrunkCall, unwrapped
from dovetail_plugins.models._hf_conversion import Conversion, conversion_of
from dovetail_plugins.models._hf_head import (
    Returns,
    TracedHead,
    below_head,
    is_text_part,
    make_whole,
    try_head,
    whole_head,
)
from dovetail_plugins.models._hf_names import plain_renamings
from dovetail_plugins.models._hf_swap import EXPERT_MATRICES, is_inputs_first, swap_layers

log = logging.getLogger(__name__)

KINDS = {"full_attention", "sliding_attention"}
PAGE = "docs/reference/architectures.md"
FIX = f"use a checkpoint of another architecture; {PAGE} lists what is served."


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """transformers' causal model, the trunk inside it, the call that runs the trunk over tokens and
    positions, and the head: the causal model's own, or that of the whole model it is a part of.

    `renamings` are transformers' plain-text renamings of checkpoint names; `conversion` makes the
    tensors that it cuts or joins.
    `inputs_first` are the name endings of matrices stored as [.., I, O].

    `first_position` is the number that the trunk's own code gives a text's first token.
    """

    causal: Any
    trunk_name: str
    trunk: nn.Module
    call: TrunkCall
    head: TracedHead
    first_position: int
    hidden_size: int
    inputs_first: tuple[str, ...]
    renamings: list[tuple[str, str]]
    conversion: Conversion | None


def build(context: BuildContext) -> Built:
    """Return the model with empty weights. Raises: ConfigError with the reason."""
    if context.rank.tensor_size > 1:
        raise refusal(context.model, "its layers cannot be divided over ranks yet")
    check_config(context.model)
    hf_attention.register()
    causal = _causal(context)
    trunk_name, trunk = _trunk(context.model, causal)
    call = TrunkCall(trunk)
    if not call.is_possible:
        raise refusal(context.model, "it counts positions itself and takes none")
    with refusing(context.model, "it does not run in a trial pass"):
        seen = probed(context, trunk, call)
        if generates(context.model):
            try_head(causal, trunk_name, seen.output)
    learn_attention(context, seen.layers, num_idle=len(seen.idle))
    with refusing(context.model, "its layers cannot be exchanged"):
        for path in seen.idle:
            trunk.set_submodule(path, AbsentStage())
        set_attention(causal, hf_attention.RUN)
        ends = inputs_first(trunk)
        swap_layers(context, trunk, f"{trunk_name}.", exempt=seen.opened)
        conversion = conversion_of(causal, causal)
    renamings = plain_renamings(causal)
    head = TracedHead(module=causal, below=trunk_name, output=type(seen.output))
    if _is_of_a_whole(context.model, causal):
        with refusing(context.model, "the head of the whole model does not run in a trial pass"):
            whole = make_whole(context.model, "meta")
            conversion = conversion_of(whole, causal)
            renamings += [pair for pair in plain_renamings(whole) if pair[0][0] != "^"]
            head = whole_head(whole, causal, seen)
    return Built(
        causal=causal,
        trunk_name=trunk_name,
        trunk=trunk,
        call=call,
        head=head,
        first_position=seen.first_position,
        hidden_size=seen.output.last_hidden_state.shape[-1],
        inputs_first=ends,
        renamings=list(dict.fromkeys(renamings)),
        conversion=conversion,
    )


def probed(context: BuildContext, trunk: nn.Module, call: TrunkCall) -> hf_attention.Probed:
    """Return the findings of a trial pass of a trunk. Mutates: trunk. Raises: ConfigError"""
    return hf_attention.probe(
        trunk,
        call,
        context.device,
        num_layers=context.model.num_layers,
        max_tokens=_served_tokens(context),
    )


def _is_of_a_whole(model: ModelSpec, causal: Any) -> bool:
    """Return whether a causal model is the text part of a class of transformers with a head of its
    own."""
    is_part = is_text_part(type(causal).__name__, model.architecture)
    is_known = bool(model.whole_config) and model.architecture in known_classes().every
    return is_part and is_known and generates(model)


def inputs_first(trunk: nn.Module) -> tuple[str, ...]:
    """Return the ends of the names of the experts' matrices that are stored [X, I, O]."""
    names = [path for path, module in trunk.named_modules() if is_inputs_first(module)]
    leaves = {f".{path.rpartition('.')[2]}.{m}" for path in names for m in EXPERT_MATRICES}
    return tuple(sorted(leaves))


def _causal(context: BuildContext) -> Any:
    """Return transformers' causal model with empty weights. Raises: ConfigError"""
    model = context.model
    with refusing(model, "transformers cannot make it from this config.json"):
        config = _config(context)
        make = _maker(model, config)
        with no_init_weights(), torch.device(context.device):
            causal = make(
                config, dtype=dtype_of(model.dtype), attn_implementation=hf_attention.PROBE
            )
        causal.to(context.device)  # some make numbers where no default reaches
        causal.tie_weights()
    if causal._is_stateful:
        raise refusal(model, "it keeps a state of its own instead of keys and values")
    return causal.eval().requires_grad_(False)


def set_attention(model: Any, name: str) -> None:
    """Make a model use an attention implementation of ours, even if transformers guesses from its
    class's source that it cannot: the probe sees what it does. Mutates: model, its class"""
    type(model)._can_set_attn_implementation_cached_value = True
    model.set_attn_implementation(name)


def _maker(model: ModelSpec, config: Any) -> Any:
    """Return the factory of a causal model from a config: the checkpoint's own class, that of the
    config's model type, or that of the whole checkpoint's type."""
    if model.code is not None:
        return load_class(model.code, CAUSAL)._from_config
    auto = transformers.AutoModelForCausalLM
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = names.get(str(model.whole_config.get("model_type")), model.architecture)
    kind = getattr(transformers, name, None) if name in names.values() else None
    is_kinds = getattr(kind, "config_class", None) is type(config)
    if kind is None or not is_kinds or type(config) in auto._model_mapping:
        return auto.from_config
    return kind._from_config


@contextmanager
def refusing(model: ModelSpec, reason: str) -> Iterator[None]:
    """Turn whatever transformers' code raises inside a with block into a refusal."""
    try:
        yield
    except ConfigError as error:
        raise refusal(model, error.what) from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise refusal(model, _known_reason(error) or f"{reason} ({_one_line(error)})") from error


def _known_reason(error: Exception) -> str | None:
    """Return what an error means, if it points to an unsupported way of computing."""
    text = str(error)
    if isinstance(error, KeyError) and hf_attention.PROBE in error.args:
        return "its attention does not go through transformers' attention interface"
    if hf_attention.PROBE in text:
        return "its attention does not go through transformers' attention interface"
    if f"'{Returns.__name__}' object" in text:
        return "its head reaches into the layers below it"
    if "Unrecognized configuration class" in text:
        return "transformers does not make its causal class from the text part of its config"
    if any(mask.__name__ in text for mask in (hf_attention.Seen, hf_attention.UnusableMask)):
        return "it computes with attention masks itself"
    return None


def _one_line(error: Exception) -> str:
    """Return an error in one line: its class and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:200]}".rstrip(".")


def _config(context: BuildContext) -> Any:
    """Return transformers' config, of the checkpoint's own class if its code has one."""
    code, fields = context.model.code, _config_fields(context)
    if code is not None and CONFIG in code.classes:
        return load_class(code, CONFIG)(**fields)
    return transformers.AutoConfig.for_model(context.model.hf_config["model_type"], **fields)


def _config_fields(context: BuildContext) -> dict[str, Any]:
    """Return the fields of transformers' config.

    Its sliding layers need a window: without one they get the longest sequence served, which
    hides nothing.
    """
    config = context.model.hf_config
    fields = {k: v for k, v in config.items() if k not in ("model_type", "dtype", "auto_map")}
    slides = "sliding_attention" in (config.get("layer_types") or ())
    if slides and "sliding_window" in config and config["sliding_window"] is None:
        fields["sliding_window"] = _served_tokens(context)
        fields.update({"use_sliding_window": True} if "use_sliding_window" in config else {})
    return fields


def _served_tokens(context: BuildContext) -> int:
    return context.max_tokens or context.model.max_position_tokens


def _trunk(model: ModelSpec, causal: Any) -> tuple[str, nn.Module]:
    """Return the part of a causal model below its head, and its name. Raises: ConfigError"""
    name = below_head(causal)
    trunk = causal._modules.get(name)
    if trunk is None:
        raise refusal(model, "its head and the layers below it are not apart")
    return unwrapped(name, trunk)


def learn_attention(context: BuildContext, layers: list[Any], num_idle: int = 0) -> None:
    """Check that every layer of the trunk attends (some do twice, by separate modules), except
    those that text does not pass through; windows beyond the served length are dropped.

    Mutates: layers. Raises: ConfigError
    """
    if len(layers) < context.model.num_layers - num_idle:
        raise refusal(
            context.model,
            f"{len(layers)} of its {context.model.num_layers} layers attend through"
            " transformers' attention interface",
        )
    for layer in layers:
        layer.spec = replace(layer.spec, is_causal=context.model.is_causal)
        if (layer.spec.window_tokens or 0) >= _served_tokens(context):
            layer.spec = replace(layer.spec, window_tokens=None)
    if hf_attention.share_shape(layers):
        spec = layers[0].spec
        log.warning(
            "the layers of %s cache different shapes: each takes the largest, %d heads of %d",
            context.model.architecture,
            spec.num_kv_heads,
            spec.head_size,
        )


def check_config(model: ModelSpec) -> None:
    """Raises: ConfigError for models that the config alone rules out."""
    config = model.hf_config
    if "model_type" not in config:
        raise refusal(model, 'its config has no "model_type"')
    if config.get("is_encoder_decoder"):
        raise refusal(model, "it is an encoder-decoder")
    if config.get("alibi"):
        raise refusal(model, "it uses ALiBi biases")
    listed = config.get("layer_types") or config.get("layers_block_type") or ()
    odd = sorted(set(map(str, listed)) - KINDS)
    if odd:
        raise refusal(model, f"it has layers of the kind {', '.join(odd)}")


def refusal(model: ModelSpec, reason: str) -> ConfigError:
    """Return the error that says why a model is not served."""
    return ConfigError(
        f"{model.architecture} cannot run on the transformers-backed model: {reason}",
        where=model.path,
        fix=FIX,
    )
