"""A transformers model that takes media, split into its encoder and its text model with dovetail's
attention.

Refused with a reason, in addition to what `_hf_build` refuses: a model whose text model receives
more than vectors at media positions (other masks, states of an encoder, vectors for later layers).
A trial call with two media finds that out: see `_hf_trial`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.decoder_head import generates
from dovetail_plugins.models import _hf_attention as hf_attention
from dovetail_plugins.models._hf_build import (
    Built,
    check_config,
    inputs_first,
    learn_attention,
    probed,
    refusal,
    refusing,
)
from dovetail_plugins.models._hf_call import TrunkCall
from dovetail_plugins.models._hf_conversion import conversion_of
from dovetail_plugins.models._hf_head import TracedHead, make_whole, try_head
from dovetail_plugins.models._hf_names import plain_renamings, stored_starts
from dovetail_plugins.models._hf_swap import swap_layers
from dovetail_plugins.models._hf_trial import Feature, Trial
from dovetail_plugins.models._towers import exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitModel:
    """A model split into parts. `built` has its text model as the trunk; `encoder` is the rest,
    `takes` the encoder's arguments by kind of media, `starts` the prefixes of names in checkpoints
    (-> transformers' prefixes), `idle` the parts that no medium goes through, which are left
    out, and `is_spatial` whether positions have three directions."""

    built: Built
    encoder: nn.Module
    embed: nn.Module
    takes: dict[str, Feature]
    starts: dict[str, str]
    idle: tuple[str, ...]
    is_spatial: bool


def build_whole(context: BuildContext, kinds: Sequence[str]) -> SplitModel:
    """Return the model with empty weights. Raises: ConfigError with the reason."""
    if context.rank.tensor_size > 1:
        raise refusal(context.model, "its layers cannot be divided over ranks yet")
    check_config(context.model)
    hf_attention.register()
    with refusing(context.model, "transformers cannot make it from this config.json"):
        whole = make_whole(context.model, context.device)
    base_name, base = _base(context, whole)
    name, text = _text(context, whole, base)
    renamings, starts = plain_renamings(whole), stored_starts(whole)
    with refusing(context.model, "it does not run in a trial pass"):
        text.set_attn_implementation(hf_attention.PROBE)
        seen = probed(context, text, TrunkCall(base))
        if generates(context.model):
            try_head(whole, base_name, seen.output)
    with refusing(context.model, "it does not run in a trial pass with media"):
        trial = Trial(context, whole, base, text, kinds)
        with hf_attention.opening(base) as opened, _called(base) as called:
            takes = {kind: trial.run(kind) for kind in kinds}
        idle = _without_idle(base, called, trial, kinds)
    learn_attention(context, seen.layers)
    with refusing(context.model, "its layers cannot be exchanged"):
        text.set_attn_implementation(hf_attention.RUN)
        ends, path = inputs_first(text), f"{base_name}.{name}"
        swap_layers(context, text, f"{path}.", exempt=seen.opened)
        embed = whole.get_input_embeddings()
        conversion = conversion_of(whole, whole)
        del base._modules[name]
        exchange(context, base, f"{base_name}.", whole.config, exempt=opened)
    built = Built(
        causal=whole,
        trunk_name=path,
        trunk=text,
        call=TrunkCall(text),
        head=TracedHead(module=whole, below=base_name, output=type(seen.output)),
        first_position=seen.first_position,
        hidden_size=seen.output.last_hidden_state.shape[-1],
        inputs_first=ends,
        renamings=renamings,
        conversion=conversion,
    )
    return SplitModel(
        built=built,
        encoder=base,
        embed=embed,
        takes=takes,
        starts=starts,
        idle=idle,
        is_spatial=trial.is_spatial,
    )


@contextmanager
def _called(base: nn.Module) -> Iterator[set[str]]:
    """Give the parts of a model that are called inside a with block, or something in them is."""
    called = set[str]()
    hooks = [
        module.register_forward_pre_hook(lambda module, args, name=name: called.add(name))
        for name, part in base.named_children()
        for module in part.modules()
    ]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def _without_idle(
    base: nn.Module, called: set[str], trial: Trial, kinds: Sequence[str]
) -> tuple[str, ...]:
    """Take parts that were not called out of a model, if it runs without them; return their names.
    They make media (Janus). Mutates: base"""
    idle = {name: part for name, part in base.named_children() if name not in called}
    if not idle or not kinds:
        return ()
    for name in idle:
        del base._modules[name]
    try:
        for kind in kinds:
            trial.run(kind)
    except Exception:  # it reads what it does not call
        base._modules.update(idle)
        return ()
    return tuple(idle)


def _base(context: BuildContext, whole: Any) -> tuple[str, Any]:
    """Return the part of a model below its head, and its name. Raises: ConfigError"""
    name = str(whole.base_model_prefix)
    base = whole._modules.get(name)
    if base is None:
        raise refusal(context.model, "its head and the layers below it are not apart")
    return name, base


def _text(context: BuildContext, whole: Any, base: nn.Module) -> tuple[str, Any]:
    """Return the text model inside the part below the head, and its name. Raises: ConfigError"""
    decoder = whole.get_decoder()
    name = next((name for name, child in base.named_children() if child is decoder), None)
    if name is None:
        raise refusal(context.model, "its text model is not apart from the rest")
    return name, decoder
