"""Mixtures: the type of each tensor in files that are mostly of one type. Imports no torch.

The output, the values of the attention and the last matrix of MLPs get a higher type than the rest
in some or all layers. Source: the rules that
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp publishes, and the numbers of
llama_ftype in https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail_plugins.gguf.blocks.types import BY_NAME, FLOAT_DTYPES

OUTPUT, TABLES = "output", ("token_embd", "per_layer_token_embd")
VALUES = ("attn_v", "attn_qkv", "attn_kv_b")
"""Matrices that make the values of the attention."""
WHOLE = ("_norm", "ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "position_embd",
         "token_types", "conv1d", "shortconv.conv", "time_mix_first", "time_mix_w", "time_mix_v0",
         "time_mix_v1", "time_mix_v2", "time_mix_a", "time_mix_g", "time_mix_decay_w",
         "time_mix_lerp", "attn_rel_b", "patch_embd", "rope_freqs", "rope_factors")  # fmt: skip
"""Parts of names of tensors that are never quantized."""
NEXT = {"IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
        "Q6_K": "Q8_0"}  # fmt: skip
"""Types of 256 values a block -> those of 32 that hold rows that are no multiple of 256."""
ANY_ROWS = "F16"
SHARED_HEADS = 4
"""Query heads per key head from which the matrix of the values is small, so that it gets more."""
EIGHT = 8
"""Experts of Mixtral: its attention is small beside them."""
_LARGE = (("llama", 80), ("qwen2", 80))
"""Architectures and layers of the models of about 70 billion weights."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the types of a model's tensors depend on. `shared_heads`: query heads per key head.
    `is_tied`: the token table is the head, too. `has_importances`: a matrix of them is used."""

    architecture: str
    num_layers: int
    shared_heads: int
    num_experts: int
    is_tied: bool
    has_importances: bool = False

    @property
    def is_large(self) -> bool:
        """Return whether the model has about 70 billion weights and shares key heads."""
        return (self.architecture, self.num_layers) in _LARGE and self.shared_heads > 1


Where = Callable[[int, Facts], bool]
"""Whether a rule holds for a layer."""


def everywhere(layer: int, facts: Facts) -> bool:
    """Every layer."""
    return True


def more_bits(layer: int, facts: Facts) -> bool:
    """The first and last eighth of the layers, and every third between."""
    eighth = facts.num_layers // 8
    return layer < eighth or layer >= 7 * facts.num_layers // 8 or (layer - eighth) % 3 == 2


def first_eighth(layer: int, facts: Facts) -> bool:
    """The first eighth of the layers."""
    return layer < facts.num_layers // 8


def first_sixteenth(layer: int, facts: Facts) -> bool:
    """The first sixteenth of the layers."""
    return layer < facts.num_layers // 16


def unmeasured_eighth(layer: int, facts: Facts) -> bool:
    """The first eighth, unless importances are known."""
    return first_eighth(layer, facts) and not facts.has_importances


def measured_eighth(layer: int, facts: Facts) -> bool:
    """The first eighth, if importances are known."""
    return first_eighth(layer, facts) and facts.has_importances


def has_shared_heads(layer: int, facts: Facts) -> bool:
    """Every layer of models whose query heads share keys."""
    return facts.shared_heads >= SHARED_HEADS


def first(count: int) -> Where:
    """Return a rule for the first layers."""
    return lambda layer, facts: layer < count


Rules = tuple[tuple[Where, str], ...]
"""The first rule that holds has the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A kind of file: `file_type` is its general.file_type, `base` the type of all matrices without
    rules; `table` that of the token table and the output, where they have one of their own.
    `raises_attention`: with eight experts the attention's output is Q5_K."""

    file_type: int
    base: str
    values: Rules = ()
    down: Rules = ()
    output: Rules = ()
    table: str = ""
    raises_attention: bool = False

    def type_of(self, name: str, facts: Facts) -> str:
        """Return the type of a matrix by GGUF's name, without ".weight", whatever its rows."""
        if self.base in FLOAT_DTYPES:
            return self.base
        if name in TABLES or name == OUTPUT:
            return self._of_table(name, facts)
        match = _BLOCK.fullmatch(name)
        if match is None:
            return self.base
        return self._in_block(int(match[1]), match[2], facts)

    def _of_table(self, name: str, facts: Facts) -> str:
        is_output = name == OUTPUT or (facts.is_tied and name == TABLES[0])
        if self.table:
            return self.table
        return "Q6_K" if is_output and self.base != "Q8_0" else self.base

    def _in_block(self, layer: int, stem: str, facts: Facts) -> str:
        has_eight = facts.num_experts == EIGHT
        if stem in VALUES:
            found = _first(self.values, layer, facts) or self.base
            found = "Q5_K" if facts.is_large and found in ("Q3_K", "Q4_K") else found
            return "Q8_0" if has_eight else found
        if stem == "attn_k" and has_eight:
            return "Q8_0"
        if stem == "attn_output":
            if has_eight:
                return "Q5_K" if self.raises_attention else self.base
            return _first(self.output, layer, facts) or self.base
        rules = self.down if stem.startswith("ffn_down") else ()
        return _first(rules, layer, facts) or self.base


def _first(rules: Rules, layer: int, facts: Facts) -> str:
    return next((kind for holds, kind in rules if holds(layer, facts)), "")


def fitting(kind: str, row: int) -> str:
    """Return the type, or the one that holds rows of this length."""
    for one in (kind, NEXT.get(kind, kind)):
        if row % BY_NAME[one].values == 0:
            return one
    return ANY_ROWS


def is_quantized(name: str, num_axes: int) -> bool:
    """Return whether a tensor, by GGUF's name, is quantized: matrices, but for small ones."""
    is_matrix = num_axes > 1 and name.endswith(".weight")
    return is_matrix and not any(part in name for part in WHOLE)


def _iq4(file_type: int, base: str) -> Mixture:
    return Mixture(
        file_type=file_type,
        base=base,
        values=((has_shared_heads, "Q5_K"),),
        down=((unmeasured_eighth, "Q5_K"),),
        raises_attention=True,
    )


MIXTURES: Mapping[str, Mixture] = {
    "f16": Mixture(file_type=1, base="F16"),
    "bf16": Mixture(file_type=32, base="BF16"),
    "q8_0": Mixture(file_type=7, base="Q8_0"),
    "q4_0": Mixture(file_type=2, base="Q4_0", down=((measured_eighth, "Q4_1"),), table="Q8_0"),
    "q5_0": Mixture(file_type=8, base="Q5_0", down=((measured_eighth, "Q5_1"),)),
    "q2_k": Mixture(
        file_type=10,
        base="Q2_K",
        values=((has_shared_heads, "Q4_K"), (everywhere, "Q3_K")),
        down=((everywhere, "Q3_K"),),
        output=((everywhere, "Q3_K"),),
        raises_attention=True,
    ),
    "q3_k_s": Mixture(file_type=11, base="Q3_K", raises_attention=True),
    "q3_k_m": Mixture(
        file_type=12,
        base="Q3_K",
        values=((first(2), "Q5_K"), (everywhere, "Q4_K")),
        down=((first_sixteenth, "Q5_K"), (everywhere, "Q4_K")),
        output=((everywhere, "Q4_K"),),
        raises_attention=True,
    ),
    "q3_k_l": Mixture(
        file_type=13,
        base="Q3_K",
        values=((everywhere, "Q5_K"),),
        down=((everywhere, "Q5_K"),),
        output=((everywhere, "Q5_K"),),
    ),
    "q4_k_s": Mixture(
        file_type=14,
        base="Q4_K",
        values=((first(4), "Q5_K"),),
        down=((first_eighth, "Q5_K"),),
        raises_attention=True,
    ),
    "q4_k_m": Mixture(
        file_type=15,
        base="Q4_K",
        values=((more_bits, "Q6_K"),),
        down=((more_bits, "Q6_K"),),
        raises_attention=True,
    ),
    "q5_k_s": Mixture(file_type=16, base="Q5_K"),
    "q5_k_m": Mixture(
        file_type=17, base="Q5_K", values=((more_bits, "Q6_K"),), down=((more_bits, "Q6_K"),)
    ),
    "q6_k": Mixture(file_type=18, base="Q6_K"),
    "iq4_nl": _iq4(25, "IQ4_NL"),
    "iq4_xs": _iq4(30, "IQ4_XS"),
}
"""What `gguf-NAME` writes."""
