"""TransformersBacked: a causal model of transformers over dovetail's attention, cache and linears.

What the model's own code does between its attention calls is left as it is. Refused with a
reason: models that keep a state of their own (mamba and its kin), encoder-decoders, ALiBi, and
models whose attention does not go through transformers' attention interface.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import MoeModelOutputWithPast

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import ModelSpec
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.models import _hf_attention as hf_attention
from dovetail_plugins.models._hf_swap import swap_layers

KINDS = {"full_attention", "sliding_attention"}


class Given(nn.Module):
    """Stands in for the trunk inside transformers' causal model: hands back hidden states."""

    hidden: torch.Tensor

    def forward(self, *args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
        """Return what was given, as the trunk would return it."""
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


class TransformersBacked(nn.Module, Model):
    """transformers' trunk and head around dovetail's attention."""

    info = Info(
        summary="any causal model of transformers, with dovetail's attention and linear layers",
        source="https://huggingface.co/docs/transformers/attention_interface",
    )

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__()
        if context.rank.tensor_size > 1:
            raise _refusal(context.model, "its layers cannot be divided over ranks yet")
        causal = build_causal(context)
        self.trunk_name = str(causal.base_model_prefix)
        self.tied = dict(causal.all_tied_weights_keys)
        self.renamings = plain_renamings(causal)
        self.trunk: nn.Module = causal.get_submodule(self.trunk_name)
        _learn_attention(context, causal, self.trunk)
        swap_layers(context, self.trunk, f"{self.trunk_name}.")
        # The head's own code (scales, soft caps) runs as it is, over hidden states it is given.
        self.given = Given()
        self.head = causal
        causal.set_submodule(self.trunk_name, self.given)

    def weight_map(self) -> WeightMap:
        """Return the names: the trunk's prefix may be absent, everything else is the head's."""
        trunk = [(f"{self.trunk_name}.", "trunk.")]
        bare = [(f"{name}.", f"trunk.{name}.") for name, _ in self.trunk.named_children()]
        names = [name for name, _ in self.head.named_children() if name != self.trunk_name]
        head = [(f"{name}.", f"head.{name}.") for name in names]
        places = (*trunk, *bare, *head)
        starts = [(old, _renamed(new, places)) for old, new in self.renamings if old[0] == "^"]
        return WeightMap(
            prefixes=(*((old[1:], new) for old, new in starts), *places),
            renames=tuple((old, new) for old, new in self.renamings if old[0] != "^"),
            ignored=("rotary_emb.inv_freq", ".attn.masked_bias", ".attention.masked_bias"),
            tied={_renamed(a, places): _renamed(b, places) for a, b in self.tied.items()},
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        out = self.trunk(
            input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
        )
        return out.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of selected tokens. Shapes: hidden [S, E] -> [S, V]"""
        self.given.hidden = hidden.unsqueeze(0)
        dummy = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)
        return self.head(input_ids=dummy, use_cache=False).logits[0]


def build_causal(context: BuildContext) -> Any:
    """Return transformers' causal model with empty weights. Raises: ConfigError with the reason."""
    model = context.model
    hf_attention.register()
    _check_config(model)
    fields = _config_fields(context)
    try:
        config = transformers.AutoConfig.for_model(model.hf_config["model_type"], **fields)
        with no_init_weights(), torch.device(context.device):
            causal = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype_of(model.dtype), attn_implementation=hf_attention.PROBE
            )
        causal.tie_weights()
    except (ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        is_own = isinstance(error, KeyError) and hf_attention.PROBE in error.args
        reason = (
            "its attention does not go through transformers' attention interface"
            if is_own
            else f"transformers cannot build it: {error!r}"
        )
        raise _refusal(model, reason) from error
    if causal._is_stateful:
        raise _refusal(model, "it keeps a state of its own instead of keys and values")
    return causal.eval().requires_grad_(False)


def _config_fields(context: BuildContext) -> dict[str, Any]:
    """Return what transformers' config is made of.

    Its sliding layers need a window: without one they get the longest sequence served, which
    hides nothing.
    """
    config = context.model.hf_config
    fields = {k: v for k, v in config.items() if k not in ("model_type", "dtype")}
    slides = "sliding_attention" in (config.get("layer_types") or ())
    if slides and "sliding_window" in config and config["sliding_window"] is None:
        fields["sliding_window"] = _served_tokens(context)
        fields.update({"use_sliding_window": True} if "use_sliding_window" in config else {})
    return fields


def _served_tokens(context: BuildContext) -> int:
    return context.max_tokens or context.model.max_position_tokens


def plain_renamings(causal: Any) -> list[tuple[str, str]]:
    """Return transformers' own (old, new) renamings of checkpoint names that are plain text.

    An old name that starts with "^" stands at the start. Names under other rules stay as they
    are; loading then lists them.
    """
    found = []
    for rule in get_model_conversion_mapping(causal, add_legacy=False):
        if not isinstance(rule, WeightRenaming):
            continue
        for old in rule.source_patterns:
            text = old.replace("\\.", ".")
            if not set(text.removeprefix("^")) & set("^$*+?()[]{}|\\"):
                found.append((text, rule.target_patterns[0]))
    return found


def _learn_attention(context: BuildContext, causal: Any, trunk: nn.Module) -> None:
    """Probe the layers and switch the model to the running attention. Mutates: causal, trunk"""
    try:
        layers = hf_attention.probe(trunk, context.device)
    except ConfigError as error:
        raise _refusal(context.model, error.what) from error
    except (TypeError, AttributeError, ValueError, RuntimeError, KeyError) as error:
        reason = f"it does not run in a probe: {error!r}"
        if hf_attention.Seen.__name__ in str(error):
            reason = "it computes with attention masks itself"
        raise _refusal(context.model, reason) from error
    if len(layers) != context.model.num_layers:
        raise _refusal(
            context.model,
            f"{len(layers)} of its {context.model.num_layers} layers attend through"
            " transformers' attention interface",
        )
    for layer in layers:
        if (layer.spec.window_tokens or 0) >= _served_tokens(context):
            layer.spec = replace(layer.spec, window_tokens=None)
    causal.set_attn_implementation(hf_attention.RUN)


def _check_config(model: ModelSpec) -> None:
    """Raises: ConfigError for what the config alone rules out."""
    config = model.hf_config
    if "model_type" not in config:
        raise _refusal(model, 'its config has no "model_type"')
    if config.get("is_encoder_decoder"):
        raise _refusal(model, "it is an encoder-decoder")
    if config.get("alibi"):
        raise _refusal(model, "it uses ALiBi biases")
    odd = sorted(set(config.get("layer_types") or ()) - KINDS)
    if odd:
        raise _refusal(model, f"it has layers of the kind {', '.join(odd)}")


def _refusal(model: ModelSpec, reason: str) -> ConfigError:
    return ConfigError(
        f"{model.architecture} cannot run on the transformers-backed model: {reason}",
        where=model.path,
        fix="choose a checkpoint whose architecture `dovetail plugins list model` names.",
    )


def _renamed(name: str, places: tuple[tuple[str, str], ...]) -> str:
    """Return a parameter's name in this module."""
    for old, new in places:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
