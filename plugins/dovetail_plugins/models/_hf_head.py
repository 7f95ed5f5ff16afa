"""The head of a transformers model, tried on given hidden states. If only a checkpoint's text part
is served, the head comes from the whole model, which may scale logits differently from the text
part's own class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from dovetail.config.rules.model.architectures import stem
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import LOGITS, ModelSpec
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.models import _hf_attention as hf_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedHead:
    """A model whose head is run: `below` is the path of the head's input in it, `output` the class
    of that part's output."""

    module: Any
    below: str
    output: type[Any]


class Returns(nn.Module):
    """A module that always returns the same output."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output


def try_head(causal: Any, below: str, output: Any) -> None:
    """Run the head on its input. Mutates: causal, for as long as it runs.
    Raises: ConfigError if it does not give logits of every token"""
    trunk = causal.get_submodule(below)
    given = type(output)(last_hidden_state=output.last_hidden_state)
    causal.set_submodule(below, Returns(given))
    try:
        with torch.inference_mode(), hf_attention.Watch():
            ids = torch.zeros(1, 2, dtype=torch.int64, device=output.last_hidden_state.device)
            logits = causal(input_ids=ids, use_cache=False).logits
    finally:
        causal.set_submodule(below, trunk)
    if tuple(logits.shape[:2]) != (1, 2):
        raise ConfigError("its head does not give logits of every token.")


def below_head(model: Any) -> str:
    """Return the name of the part below a model's head, "" if it is not separate."""
    named = str(model.base_model_prefix)
    if named in model._modules:
        return named
    models = [n for n, child in model.named_children() if isinstance(child, PreTrainedModel)]
    return models[0] if len(models) == 1 else ""


def make_whole(model: ModelSpec, device: str) -> Any:
    """Return transformers' model of all that a checkpoint holds, with empty weights."""
    fields = dict(model.whole_config)
    fields = {k: v for k, v in fields.items() if k not in ("dtype", "torch_dtype", "auto_map")}
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    make = getattr(transformers, model.architecture)._from_config
    with no_init_weights(), torch.device(device):
        whole = make(config, dtype=dtype_of(model.dtype))
    whole.to(device)  # some make numbers where no default reaches
    whole.tie_weights()
    return whole.eval().requires_grad_(False)


def is_text_part(causal: str, architecture: str) -> bool:
    """Return whether a checkpoint's class is a whole model with this causal class as its text part,
    rather than the same text model with another head."""
    family, head = stem(architecture)
    generates_too = head in (LOGITS, None)
    return causal != architecture if generates_too else stem(causal)[0] != family


def whole_head(whole: Any, causal: Any, seen: hf_attention.Probed) -> TracedHead:
    """Return the head of a model without memory whose text part is `causal`, over that part's
    logits table. Mutates: whole. Raises: ConfigError"""
    below = below_head(whole)
    base = whole._modules.get(below)
    table = whole.get_output_embeddings()
    if base is None or table is None:
        raise ConfigError("its head and the layers below it are not apart.")
    output = _output(base, whole.get_decoder(), seen.output)
    try_head(whole, below, output)
    whole.set_submodule(below, Returns(None))
    whole.set_output_embeddings(causal.get_output_embeddings())
    if any(one.is_meta for one in (*whole.parameters(), *whole.buffers())):
        raise ConfigError("it has weights beside those of its text part.")
    return TracedHead(module=whole, below=below, output=type(output))


def _output(base: Any, decoder: nn.Module, given: Any) -> Any:
    """Return the output of the part below a whole model's head, given its text model's output.
    Mutates: decoder"""
    hidden = given.last_hidden_state.to("meta")
    returned = type(given)(last_hidden_state=hidden)
    vars(decoder)["forward"] = lambda *args, **kwargs: returned
    ids = torch.zeros(1, hidden.shape[1], dtype=torch.int64, device="meta")
    with torch.inference_mode(), hf_attention.Watch():
        return base(input_ids=ids, use_cache=False)
