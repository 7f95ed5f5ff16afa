"""Mixtures: the type of each tensor in files that are mostly of one type. Imports no torch.

The output, the values of the attention and the last matrix of MLPs get a higher type than the rest
in some or all layers. Source: the rules that
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp publishes, and the numbers of
llama_ftype in https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dovetail_plugins.gguf.blocks.types import BY_NAME, FLOAT_DTYPES

OUTPUT, TABLES = "output", ("token_embd", "per_layer_token_embd")
VALUES = ("attn_v", "attn_qkv", "attn_kv_b")
"""Ends of names of matrices that make the values of the attention."""
DOWN = "ffn_down"
"""Part of the names of the last matrices of MLPs."""
WHOLE = ("_norm", "ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "position_embd",
         "token_types", "conv1d", "shortconv.conv", "time_mix_first", "time_mix_w", "time_mix_v0",
         "time_mix_v1", "time_mix_v2", "time_mix_a", "time_mix_g", "time_mix_decay_w",
         "time_mix_lerp", "attn_rel_b", "patch_embd", "rope_freqs", "rope_factors",
         "indexer.k_proj", "indexer.q_proj", "ffn_gate_tid2eid", "patch_merger")  # fmt: skip
"""Parts of names of tensors that are never quantized."""
NEXT = {"IQ4_XS": "IQ4_NL", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
        "Q6_K": "Q8_0"}  # fmt: skip
"""Types of 256 values a block -> those of 32 that hold rows that are no multiple of 256."""
ANY_ROWS = "F16"
SHARED_HEADS = 4
"""Query heads per key head from which the matrix of the values is small, so that it gets more."""
EIGHT = 8
"""Experts of Mixtral: its attention is small beside them."""
FALCON = "falcon"
_LARGE = (("llama", 80), ("qwen2", 80), ("deci", 80))
"""Architectures and layers of the models of about 70 billion weights."""
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the types of a model's tensors depend on. `shared_heads`: query heads per key head of
    the first layer. `is_tied`: the token table is the head, too. `has_importances`: a matrix of
    them is used. `values`, `downs`: the matrices of these two kinds in the file's order, where not
    each layer has one."""

    architecture: str
    num_layers: int
    shared_heads: int
    num_experts: int
    is_tied: bool
    has_importances: bool = False
    values: tuple[str, ...] = ()
    downs: tuple[str, ...] = ()

    @property
    def is_large(self) -> bool:
        """Return whether the model has about 70 billion weights and shares key heads."""
        return (self.architecture, self.num_layers) in _LARGE and self.shared_heads > 1

    def place_of_values(self, name: str) -> tuple[int, int]:
        """Return the place of a matrix among those of its kind, and how many there are."""
        if name in self.values:
            return self.values.index(name), len(self.values)
        return _layer_of(name), self.num_layers

    def place_of_down(self, name: str) -> tuple[int, int]:
        """Return the place of a last matrix of an MLP, and of how many. With experts, whose layers
        have several of them, it is the layer's."""
        if name in self.downs and self.num_experts < 2:
            return self.downs.index(name), self.num_layers
        return _layer_of(name), self.num_layers


def _layer_of(name: str) -> int:
    match = _BLOCK.search(name)
    return int(match[1]) if match else 0


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in llama.cpp's order: by the layer, those of no layer first."""
    found = {name: _BLOCK.match(name) for name in names}
    return sorted(found, key=lambda name: (int(m[1]) if (m := found[name]) else -1, name))


Where = Callable[[int, int, Facts], bool]
"""Whether a rule holds for a place, of a number of places."""


def everywhere(place: int, count: int, facts: Facts) -> bool:
    """All matrices."""
    return True


def more_bits(place: int, count: int, facts: Facts) -> bool:
    """The first and last eighth, and every third between."""
    eighth = count // 8
    return place < eighth or place >= 7 * count // 8 or (place - eighth) % 3 == 2


def first_eighth(place: int, count: int, facts: Facts) -> bool:
    """The first eighth."""
    return place < count // 8


def first_sixteenth(place: int, count: int, facts: Facts) -> bool:
    """The first sixteenth."""
    return place < count // 16


def unmeasured_eighth(place: int, count: int, facts: Facts) -> bool:
    """The first eighth, unless importances are known."""
    return first_eighth(place, count, facts) and not facts.has_importances


def measured_eighth(place: int, count: int, facts: Facts) -> bool:
    """The first eighth, if importances are known."""
    return first_eighth(place, count, facts) and facts.has_importances


def has_shared_heads(place: int, count: int, facts: Facts) -> bool:
    """All matrices of models whose query heads share keys."""
    return facts.shared_heads >= SHARED_HEADS


def first(number: int) -> Where:
    """Return a rule for the first matrices."""
    return lambda place, count, facts: place < number


Rules = tuple[tuple[Where, str], ...]
"""The first rule that holds has the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A kind of file: `file_type` is its general.file_type, `base` the type of all matrices without
    rules, `head` that of the output; `table` that of the token table and the output, where they
    have one of their own. `raises_attention`: with eight experts the attention's output is Q5_K."""

    file_type: int
    base: str
    values: Rules = ()
    down: Rules = ()
    output: Rules = ()
    head: str = "Q6_K"
    table: str = ""
    raises_attention: bool = False

    def type_of(self, name: str, facts: Facts) -> str:
        """Return the type of a matrix by GGUF's name, without ".weight", whatever its rows."""
        if self.base in FLOAT_DTYPES:
            return self.base
        if name in TABLES or name == OUTPUT:
            return self._of_table(name, facts)
        if name.endswith(VALUES):
            return self._of_values(name, facts)
        has_eight = facts.num_experts == EIGHT
        if name.endswith("attn_k") and has_eight:
            return "Q8_0"
        if name.endswith("attn_output"):
            if has_eight:
                return "Q5_K" if self.raises_attention else self.base
            return self._first(self.output, (0, 1), facts)
        if DOWN in name:
            return self._first(self.down, facts.place_of_down(name), facts)
        return self.base

    def _of_table(self, name: str, facts: Facts) -> str:
        is_output = name == OUTPUT or (facts.is_tied and name in TABLES)
        if self.table:
            return self.table
        return self.head if is_output and self.base != "Q8_0" else self.base

    def _of_values(self, name: str, facts: Facts) -> str:
        if facts.num_experts == EIGHT:
            return "Q8_0"
        found = self._first(self.values, facts.place_of_values(name), facts)
        return "Q5_K" if facts.is_large and found in ("Q3_K", "Q4_K") else found

    def _first(self, rules: Rules, place: tuple[int, int], facts: Facts) -> str:
        return next((kind for holds, kind in rules if holds(*place, facts)), self.base)


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
_OF_FALCON: Mapping[str, Rules] = {
    "q3_k_m": ((first_sixteenth, "Q5_K"), (more_bits, "Q4_K")),
    "q3_k_l": ((everywhere, "Q4_K"),),
    "q4_k_s": (),
    "q4_k_m": ((first_sixteenth, "Q6_K"), (more_bits, "Q5_K")),
}
"""What `ffn_down` of Falcon gets instead."""


def mixture_of(name: str, architecture: str) -> Mixture:
    """Return the mixture of a model. Falcon's head is Q8_0, and fewer matrices get more bits."""
    plain = MIXTURES[name]
    if architecture != FALCON:
        return plain
    output: Rules = ((everywhere, "Q4_K"),) if name == "q3_k_l" else ()
    down = _OF_FALCON.get(name, plain.down)
    return replace(plain, head="Q8_0", output=output, down=down, raises_attention=False)
