"""Embeddings of n-grams of token ids: each token adds what its last ids say to M residual streams.

For a token with the ids t_0 (its own), t_1, t_2, .. before it (ids at and before an end of text
count as ends), streams x_1 .. x_M, and e the rows of all heads' tables, side by side:

    row of a head for n ids = (t_0 m_0 xor .. xor t_(n-1) m_(n-1)) mod (the head's prime)
    v = value_proj e,  k_i = norm(key_proj e)_i,  q_i = norm(x)_i
    s_i = q_i . k_i / sqrt(E)
    y_i = sigmoid(sign(s_i) sqrt(|s_i|)) v
    x = x + y + silu(conv1d(norm(y)))                    # each input `dilation` tokens apart

A row's last ids and inputs are its state. Replicated on every rank, but the tables' rows are
divided. Source: Qwen team, Qwen4-Exp, 2026, as transformers has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.linear.placement import Part as Rows
from dovetail.layers.linear.placement import Placement, WeightHolder, place_rows
from dovetail.layers.linear.placement import Rows as SomeRows
from dovetail.layers.repeated import of_tensors
from dovetail.layers.state import CONV, IDS, Part, RowStates, State
from dovetail_kernels import short_conv
from dovetail_kernels.short_conv.native import MAX_WIDTH
from dovetail_kernels.short_conv.native import ShortConv as NativeShortConv
from dovetail_plugins.layers.gated_residual import StreamsNorm
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows

LEAST_SCORE = 1e-6
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
LAYER_PRIME = 10007


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramsConfig:
    """The sizes of one layer's n-grams: `streams` M, up to `max_ids` ids, `heads` of each length,
    `size` numbers of all heads together. Each head's table has at least `least_rows`, their joint
    one a multiple of `multiple` in `shards` tensors. `index` counts the layers with n-grams, `seed`
    is the model's; `end` is the id that ends a text. `conv` is the convolution's width."""

    streams: int
    max_ids: int
    heads: int
    size: int
    least_rows: int
    multiple: int
    shards: int
    index: int
    seed: int
    end: int
    conv: int
    norm_eps: float

    @property
    def num_heads(self) -> int:
        """Return the heads of all lengths, from two ids on."""
        return (self.max_ids - 1) * self.heads


class Delay(nn.Module):
    """A row's inputs of some tokens before; zeros before its first. Shapes: weight [C, lag + 1]"""

    def __init__(self, context: BuildContext, channels: int, lag: int) -> None:
        super().__init__()
        weight = torch.zeros(channels, lag + 1, device=context.device)
        weight[:, 0] = 1
        self.register_buffer("weight", weight, persistent=False)
        self.shape = (channels, lag)
        self._run = OverRows(short_conv.OP, context, NativeShortConv, dict)
        self._run.finish()

    def forward(self, x: torch.Tensor, state: torch.Tensor, rows: RowStates) -> torch.Tensor:
        """Shapes: x [T, C], state [N, C, lag] -> [T, C]. Mutates: state"""
        return self._run(state, rows, x=x, weight=self.get_buffer("weight"), bias=None)


class ShardedTable(VocabParallelEmbedding):
    """The joint table of all heads, which checkpoints store in `shards` tensors, or in one."""

    def __init__(self, context: BuildContext, rows: int, size: int, *, shards: int) -> None:
        super().__init__(context, rows, size)
        self._size = -(-rows // shards)
        self._shards = [f"shard_{i}" for i in range(-(-rows // self._size))]

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where a shard goes, or the whole table (see WeightHolder)."""
        shard, _, own = leaf.rpartition(".")
        if own not in self._parameters or shard not in ("", *self._shards):
            return None
        rows = [self._rows_of_shard(name, is_whole=not shard) for name in self._shards]
        if shard:
            rows = [one for one in rows if one.piece == shard]
        return place_rows(own, self.get_parameter(own), self.part.local, rows, None)

    def _rows_of_shard(self, shard: str, *, is_whole: bool) -> SomeRows:
        """Return the rows of a shard that this rank has, in a tensor of its own or in the whole."""
        before = self._shards.index(shard) * self._size
        count = min(self._size, self.part.full - before)
        low = min(max(before, self.part.start), before + count)
        high = max(low, min(before + count, self.part.start + self.part.held))
        return SomeRows(
            piece=shard,
            start=low if is_whole else low - before,
            size=high - low,
            full=self.part.full if is_whole else count,
            offset=low - self.part.start if high > low else 0,
        )

    def pieces(self, leaf: str) -> set[str]:
        """Return the shards."""
        return set(self._shards)


class NgramTable(WeightHolder):
    """The rows of tables that n-grams name. What names them follows from the config; checkpoints
    may store it, too."""

    def __init__(self, context: BuildContext, config: NgramsConfig) -> None:
        super().__init__()
        self.config = config
        sizes = _primes(config.least_rows, config.num_heads, config.index)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        found = {
            "layer_multipliers": _multipliers(config, context.model.vocab_size),
            "ngram_heads_vocab_sizes": sizes,
            "ngram_heads_offsets": starts,
        }
        for name, numbers in found.items():
            self.register_buffer(name, torch.tensor(numbers, device=context.device), False)
        count = -(-sum(sizes) // config.multiple) * config.multiple
        self.ngram_embedding = ShardedTable(
            context, count, config.size // config.num_heads, shards=config.shards
        )

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return no placement for numbers that follow from the config (see WeightHolder)."""
        return [] if leaf in self._buffers else None

    def pieces(self, leaf: str) -> set[str]:
        """Return an empty set: there is no parameter."""
        return set()

    def forward(self, ids: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of a token's n-grams, side by side; `ids` less the end's: its own, the
        one before it, and so on. Shapes: each [T, 1] float32 -> [T, size]"""
        (rows,) = of_tensors(self._named, *ids)
        found: torch.Tensor = self.ngram_embedding(rows)
        return found.view(len(ids[0]), -1)

    def _named(self, *ids: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the table's rows. Shapes: each [T, 1] -> [T heads] int64"""
        config, found = self.config, []
        factors, sizes, starts = (
            self.get_buffer(name)
            for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
        )
        mixed = (ids[0].long() + config.end) * factors[0]
        is_open = torch.ones_like(mixed, dtype=torch.bool)
        for place in range(1, config.max_ids):
            earlier = ids[place].long() * is_open + config.end
            is_open = is_open & (ids[place] != 0)
            mixed = mixed ^ (earlier * factors[place])
            own = slice((place - 1) * config.heads, place * config.heads)
            found.append(mixed.remainder(sizes[own]) + starts[own])
        return (torch.cat(found, dim=-1).flatten(),)


class NgramStreams(nn.Module):
    """What n-grams add to the streams in one layer. `name` is the module's in the checkpoint, and
    names the rows' state. Raises: ConfigError for convolutions that are too wide."""

    def __init__(
        self, context: BuildContext, plain: BuildContext, name: str, config: NgramsConfig
    ) -> None:
        super().__init__()
        if config.max_ids >= MAX_WIDTH:
            raise ConfigError(
                f"n-grams of {config.max_ids} tokens are longer than the kernels' {MAX_WIDTH - 1}.",
                where="config.json: ngram_size",
            )
        hidden = context.model.hidden_size
        width, eps = config.streams * hidden, config.norm_eps
        self.config = config
        self.ple_embedding = NgramTable(plain, config)
        self.key_proj = ReplicatedLinear(context, f"{name}.key_proj", config.size, width)
        self.value_proj = ReplicatedLinear(context, f"{name}.value_proj", config.size, hidden)
        self.norm_key, self.norm_query, self.norm_conv = (
            StreamsNorm(context, config.streams, eps=eps) for _ in range(3)
        )
        self.conv1d = _taps(context, width, config.conv)
        self.id_delay = Delay(context, 1, 1)
        self.delay = Delay(context, width, config.max_ids)
        kinds = ((IDS, self.id_delay, config.max_ids - 1), (CONV, self.delay, config.conv - 1))
        self.state = State(
            name,
            tuple(
                Part(name=f"{kind}_{i}", shape=delay.shape, holds=kind)
                for kind, delay, count in kinds
                for i in range(count)
            ),
        )

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the streams with what n-grams add. Shapes: x [T, M E], token_ids [T] ->
        [T, M E]"""
        parts, rows = self.state.step()
        ids = [of_tensors(self._from_end, token_ids)[0]]
        for i in range(self.config.max_ids - 1):
            ids.append(self.id_delay(ids[-1], parts[f"{IDS}_{i}"], rows))
        found = self.ple_embedding(ids)
        keys = self.norm_key(self.key_proj(found))
        (gated,) = of_tensors(_gated, self.norm_query(x), keys, self.value_proj(found))
        inputs = [self.norm_conv(gated)]
        for i in range(self.config.conv - 1):
            inputs.append(self.delay(inputs[-1], parts[f"{CONV}_{i}"], rows))
        return of_tensors(self._added, x, gated, *inputs)[0]

    def _from_end(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        return ((ids - self.config.end).float().unsqueeze(-1),)

    def _added(
        self, x: torch.Tensor, gated: torch.Tensor, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """Return the sum of streams, gated values and their convolution; `inputs`: the newest
        first."""
        taps = self.conv1d.get_parameter("weight").squeeze(1).flip(-1)
        sums = [one * taps[:, i] for i, one in enumerate(inputs)]
        return (x + gated + F.silu(sum(sums[1:], sums[0])),)


def _gated(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor]:
    """Return the values, as streams and keys weigh them. Shapes: x, keys [T, M E], values [T, E]
    -> [T, M E]"""
    size = values.shape[-1]
    scores = (x * keys).unflatten(-1, (-1, size)).sum(dim=-1, keepdim=True) / math.sqrt(size)
    gates = (scores.abs().clamp_min(LEAST_SCORE).sqrt() * scores.sign()).sigmoid()
    return ((gates * values.unsqueeze(-2)).flatten(-2),)


def _taps(context: BuildContext, channels: int, width: int) -> DividedVectors:
    """Return the holder of a convolution's weight. Shapes: [C, 1, width]"""
    found = DividedVectors()
    rows = Rows(name="", full=channels, local=channels, start=0)
    found.add_vector(context, "weight", (rows,), behind=(1, width))
    return found


def _multipliers(config: NgramsConfig, vocab_size: int) -> list[int]:
    """Return an odd number for each place in an n-gram, by the generator splitmix64.

    Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014.
    """
    bound = max(1, ((1 << 63) - 1) // max(vocab_size, 1) // 2)
    first = config.seed + LAYER_PRIME * config.index
    return [
        2 * (_mixed(first + GAMMA * (place + 1)) % bound) + 1 for place in range(config.max_ids)
    ]


def _mixed(state: int) -> int:
    """Return the number that splitmix64 draws in a state."""
    value = (state + GAMMA) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _primes(least: int, count: int, index: int) -> list[int]:
    """Return the primes from `least` on that belong to a layer: the first layer has the first
    `count`, and so on."""
    numbers = (n for n in range(max(2, least), 2 * least + 10**6) if _is_prime(n))
    return list(islice(numbers, index * count, (index + 1) * count))


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
