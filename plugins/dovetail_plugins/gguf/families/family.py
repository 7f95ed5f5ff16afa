"""Family: how the GGUF files of one architecture are read. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch

Undo = Callable[[GgufModel, "torch.Tensor"], "torch.Tensor"]
"""Undoes what the converter did to a tensor."""
LABELS = "classifier.output_labels"


def _yes_less_no(model: GgufModel, tensor: torch.Tensor) -> torch.Tensor:
    """Return the row whose product is the log of the odds of "yes", of a reranker's two rows."""
    labels = model.settings.get(f"{model.settings['general.architecture']}.{LABELS}")
    return tensor[:1].float() - tensor[1:].float() if labels == ["yes", "no"] else tensor


STATES: Mapping[str, Undo] = {
    "cls.output": _yes_less_no,
    "ssm_a": lambda model, tensor: tensor.float().neg().log(),  # -exp(A_log)
    "ssm_norm": lambda model, tensor: tensor.flatten(),  # a row for each group
}
"""What converters do to the tensors of Mamba's states, and to the head of a reranker."""
TRUNK = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "cls.output": "score",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNames:
    """A family's names.

    `block`: names of modules in a block without "blk.N."; `own`: whole names of tensors in a block
    that are not called after their module. `joined`: tensors that are parts of one matrix of the
    checkpoint. `turns_heads`: rows of q and k are in another order; `adds_one`: norm weights are
    stored plus one; `is_input_first`: the checkpoint's matrices are [in, out]; `has_letters`: the
    checkpoint names the matrices of an expert w1, w3 and w2. `stacked`: tensors outside blocks that
    are several matrices, numbered in the checkpoint. `whole`: those that are dequantized when they
    are read, because the model changes their numbers. `sides`: the names of an encoder's and of a
    decoder's tensors, by the word that GGUF's name begins with. `undo`: GGUF's name of a tensor,
    without "blk.N." and ".weight" -> what turns it into the checkpoint's. `num_layers`: the blocks
    before those that draft further tokens, if the latter have no names here or others: `drafts` has
    whole names of what joins them to the model, `draft_blocks` how the rest begins."""

    block: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, str] = field(default_factory=dict)
    trunk: Mapping[str, str] = field(default_factory=lambda: TRUNK)
    blocks: str = "model.layers"
    turns_heads: bool = False
    adds_one: bool = False
    is_input_first: bool = False
    has_letters: bool = False
    stacked: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()
    sides: Mapping[str, FamilyNames] = field(default_factory=dict)
    undo: Mapping[str, Undo] = field(default_factory=lambda: STATES)
    drafts: Mapping[str, str] = field(default_factory=dict)
    draft_blocks: str = ""
    num_layers: int | None = None

    @property
    def has_drafts(self) -> bool:
        """Return whether the blocks that draft further tokens have names here."""
        return bool(self.drafts) or any(name.startswith("nextn.") for name in self.block)

    def drafting(self, name: str) -> int | None:
        """Return the number of a tensor's block among those that draft, None if it is not in one
        or they are named as all others are."""
        words = name.split(".", 2)
        if self.num_layers is None or words[0] != "blk" or not words[1].isdecimal():
            return None
        number = int(words[1]) - self.num_layers
        return number if number >= 0 else None

    def is_left_out(self, name: str) -> bool:
        """Return whether a tensor is not read: it is in a block that drafts, and has no name."""
        return not self.has_drafts and self.drafting(name) is not None


def usual_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return GGUF's name of a matrix -> its rows by the config, None if that does not say."""
    inner = config.get("intermediate_size_mlp") or config.get("intermediate_size")
    inner = inner or config.get("n_inner")
    rows = {"ffn_up.weight": inner[0] if isinstance(inner, list) else inner}
    if "num_attention_heads" not in config:
        return rows
    size = config["head_dim"]
    if "kv_lora_rank" in config:
        size = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    return rows | {"attn_q.weight": heads * size, "attn_k.weight": kv_heads * size}


def joined_mlp_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows where gate and up are one matrix."""
    inner = config["intermediate_size"]
    return usual_rows(config) | {"ffn_up.weight": None if inner is None else 2 * inner}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How files of an architecture are read.

    `config`: the config.json that the settings mean, without what all families have. `names`: the
    checkpoint's names of the tensors; `other_names` returns others for a file that has other
    tensors, or None. `has_heads`: the model attends. `rows`: the rows of matrices by the config,
    which are compared with the tensors' before the model is built.
    """

    config: Callable[[Settings], dict[str, Any]]
    names: FamilyNames
    other_names: Callable[[GgufModel], FamilyNames | None] = lambda model: None
    has_heads: bool = True
    rows: Callable[[Mapping[str, Any]], Mapping[str, int | None]] = usual_rows
