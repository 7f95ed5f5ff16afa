"""Rotary position embedding: frequencies of every scaling rule, a table, and the rotation of heads.

Independent of models. Settings are read from config.json in both spellings (`rope_parameters`, and
`rope_theta` with `rope_scaling`). If a rule depends on the sequence length (dynamic, longrope), the
maximum served length is used for all, so that cached keys stay valid and a row's result never
depends on its neighbours.
Sources: Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN); Ding et al. 2024 (LongRoPE).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from dovetail import registry
from dovetail.config.checkpoint.rope import FULL, TRAINED, rope_of, rule_name
from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.context import step_adapters
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail.layers.norm import RMSNorm
from dovetail.layers.opaque import is_traced
from dovetail.registry.files import import_target
from dovetail_kernels import qk_rotary
from dovetail_kernels.qk_rotary.native import QkRotary

Frequencies = tuple[torch.Tensor, float]
"""Angle per position of each pair [size / 2] (float32), and the factor on cos and sin."""

Rule = Callable[["RopeSettings"], Frequencies]
"""A scaling rule: the plugin that a rope_type names."""

PROPORTIONAL = "proportional"
"""The rule whose pairs cover the whole head but whose last pairs are not rotated."""

"""The layer kind that a scaling of the whole model applies to, if there are several."""
PLAIN_RULES = ("default", "linear")

Turn = Callable[..., None]
"""A kernel of the op qk_rotary, for a number of heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSettings:
    """One rotary embedding. `size` is the rotated part of the head (even); positions are tokens.

    `trained_positions` is the checkpoint's max_position_embeddings, `served_positions` the maximum
    sequence length served. `values` holds the rule's own numbers, and `frequencies` is the rule
    itself. Adapters may instead use linear scaling by one of `factors`.
    """

    rule: str
    frequencies: Rule = field(default_factory=lambda: default)
    theta: float
    size: int
    trained_positions: int
    served_positions: int
    values: Mapping[str, Any] = field(default_factory=dict)
    factors: tuple[float, ...] = ()

    def number(self, key: str) -> float:
        """Return one of the rule's numbers. Raises: ConfigError when it is missing."""
        value = self.values.get(key)
        if not isinstance(value, int | float):
            raise ConfigError(
                f'rope rule "{self.rule}" needs the number "{key}".', where="config.json"
            )
        return float(value)

    def optional(self, key: str) -> float | None:
        """Return one of the rule's numbers, or None when it is absent or null."""
        return None if self.values.get(key) is None else self.number(key)


def rope_settings(
    context: BuildContext,
    *,
    theta: float = 10000.0,
    kind: str | None = None,
    share: float = 1.0,
    head_size: int | None = None,
) -> RopeSettings:
    """Return the settings in the checkpoint's config; `kind` picks one of several per layer type.
    `theta` and `share` (the rotated share of the head) are defaults; `head_size` is the layers', if
    it differs from the model's.

    Raises: ConfigError when the rule is unknown.
    """
    model = context.model
    values = rope_values(model.hf_config, kind)
    rule = rule_name(values)
    factors = context.rope_factors if kind in (None, FULL) else ()
    if factors and rule not in PLAIN_RULES:
        raise ConfigError(
            f"the model's rope scaling is {rule}, and adapters may have one of their own where it "
            "is none or linear.",
            where="--long-lora-scaling-factors",
            fix="leave it out.",
        )
    share = float(values.get("partial_rotary_factor") or share)
    whole = model.head_size if head_size is None else head_size
    return RopeSettings(
        rule=rule,
        frequencies=_rule(rule, model.rope_rules),
        theta=float(values.get("rope_theta") or theta),
        size=whole if rule == PROPORTIONAL else int(whole * share),
        trained_positions=int(model.hf_config.get("max_position_embeddings") or 0)
        or model.max_position_tokens,
        served_positions=context.max_tokens or model.max_position_tokens,
        values=values,
        factors=factors,
    )


def unscaled(settings: RopeSettings, *, theta: float | None = None) -> RopeSettings:
    """Return the settings of layers without a scaling rule, or with another theta."""
    theta = settings.theta if theta is None else theta
    return replace(
        settings, rule="default", frequencies=default, theta=theta, values={}, factors=()
    )


def scaled(settings: RopeSettings) -> list[RopeSettings]:
    """Return the settings of adapters with their own rope scaling, one per factor."""
    plain = replace(settings, rule="linear", frequencies=linear)
    return [replace(plain, values={"factor": factor}) for factor in settings.factors]


def _rule(name: str, found: Mapping[str, str]) -> Rule:
    """Return the rule of a name: from the checkpoint's facts, or from the registry if the facts
    were written by hand. Raises: UnknownPlugin, BrokenPlugin"""
    where = "rope_type of the checkpoint"
    rule = import_target(found.get(name) or registry.admin.value_of("rope_type", name, where=where))
    if not callable(rule):
        raise BrokenPlugin(
            f"{found.get(name, name)} is not a function of RopeSettings.", where=f"rope_type {name}"
        )
    return cast(Rule, rule)


def rope_values(config: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
    """Return the rope numbers of a config as one flat dict, whichever spelling it uses."""
    values = dict(rope_of(config, kind))
    for key in ("rope_theta", "partial_rotary_factor"):
        if values.get(key) is None and config.get(key) is not None:
            values[key] = config[key]
    # Phi-3 has its trained length outside the rope settings, and that one counts.
    trained = config.get(TRAINED)
    if trained is not None:
        values[TRAINED] = trained
    values.setdefault(TRAINED, config.get("max_position_embeddings"))
    values.setdefault("max_position_embeddings", config.get("max_position_embeddings"))
    return values


def default(settings: RopeSettings) -> Frequencies:
    """theta ** (-2 i / size)."""
    return _inverse(settings.theta, settings.size), 1.0


def _inverse(theta: float, size: int) -> torch.Tensor:
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    return 1.0 / (theta**exponents)


def linear(settings: RopeSettings) -> Frequencies:
    """All positions divided by the factor."""
    return _inverse(settings.theta, settings.size) / settings.number("factor"), 1.0


def dynamic(settings: RopeSettings) -> Frequencies:
    """A larger theta, such that `served_positions` fit; unchanged within the trained length."""
    factor, size = settings.number("factor"), settings.size
    length = max(settings.served_positions, settings.trained_positions)
    stretch = factor * length / settings.trained_positions - (factor - 1)
    return _inverse(settings.theta * stretch ** (size / (size - 2)), size), 1.0


def llama3(settings: RopeSettings) -> Frequencies:
    """Long waves divided by the factor, short ones unchanged, a linear blend in between."""
    plain = _inverse(settings.theta, settings.size)
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    turns = settings.number("original_max_position_embeddings") * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * plain / factor, 1.0


def yarn(settings: RopeSettings) -> Frequencies:
    """Interpolated below `beta_slow` turns, unchanged above `beta_fast`, a ramp over pairs
    between."""
    trained = settings.number("original_max_position_embeddings")
    factor = settings.optional("factor") or settings.number("max_position_embeddings") / trained
    plain = _inverse(settings.theta, settings.size)
    low = _pair_with_turns(settings, settings.optional("beta_fast") or 32.0, trained)
    high = _pair_with_turns(settings, settings.optional("beta_slow") or 1.0, trained)
    if settings.values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, settings.size - 1)
    pairs = torch.arange(settings.size // 2, dtype=torch.float32)
    slow = ((pairs - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return slow * plain / factor + (1 - slow) * plain, _yarn_scale(settings, factor)


def _pair_with_turns(settings: RopeSettings, turns: float, trained: float) -> float:
    """Return the (fractional) pair that makes `turns` full turns over the trained length."""
    wave = trained / (turns * 2 * math.pi)
    return settings.size * math.log(wave) / (2 * math.log(settings.theta))


def _yarn_scale(settings: RopeSettings, factor: float) -> float:
    given = settings.optional("attention_factor")
    if given is not None:
        return given

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    own, all_dim = settings.optional("mscale"), settings.optional("mscale_all_dim")
    return grown(own) / grown(all_dim) if own and all_dim else grown(1.0)


def proportional(settings: RopeSettings) -> Frequencies:
    """theta ** (-2 i / size) for the first pairs, no rotation for the others: only a share of the
    head, `partial_rotary_factor`, is rotated."""
    turned = int(float(settings.values.get("partial_rotary_factor") or 1.0) * settings.size // 2)
    plain = _inverse(settings.theta, settings.size) / (settings.optional("factor") or 1.0)
    plain[turned:] = 0.0
    return plain, 1.0


def ntk(settings: RopeSettings) -> Frequencies:
    """A larger theta, and all angles slightly smaller; with `mixed_b`, divisors that grow with the
    pair. Source: Su, "Transformer upgrade road: 11", kexue.fm/archives/9706, eq. 6 and 10"""
    factor, size = settings.number("factor"), settings.size
    power = settings.optional("mixed_b")
    if power is None:
        return _inverse(settings.theta * factor, size) / factor ** (2 / size), 1.0
    pairs = torch.arange(1, size // 2 + 1, dtype=torch.float32)
    divisors = (math.log(factor) * (pairs / (size // 2)) ** power).exp()
    return _inverse(settings.theta, size) / divisors, 1.0


def longrope(settings: RopeSettings) -> Frequencies:
    """A divisor per pair: the long list when sequences beyond the trained length are served."""
    trained = settings.number("original_max_position_embeddings")
    key = "long_factor" if settings.served_positions > trained else "short_factor"
    divisors = torch.tensor(settings.values.get(key) or (), dtype=torch.float32)
    if len(divisors) != settings.size // 2:
        raise ConfigError(
            f'"{key}" has {len(divisors)} numbers, the head needs {settings.size // 2}',
            where="config.json",
        )
    scale = settings.optional("attention_factor")
    if scale is None:
        factor = settings.optional("factor")
        factor = factor or settings.number("max_position_embeddings") / trained
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return _inverse(settings.theta, settings.size) / divisors, scale


class Rope:
    """The tokens' positions, and the table of cos and sin to look them up in.

    Shapes: positions [T] int64, cos and sin [positions served, size / 2] float32
    """

    __slots__ = ("_rows", "cos", "positions", "sin")

    def __init__(self, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.positions, self.cos, self.sin = positions, cos, sin
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def is_still(self) -> bool:
        """Return whether nothing is rotated."""
        return self.cos.shape[1] == 0

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens' cos and sin, looked up once. Shapes: 2 x [T, 1, size / 2]"""
        if self._rows is None:
            at = self.positions
            self._rows = self.cos[at].unsqueeze(1), self.sin[at].unsqueeze(1)
        return self._rows


class Rotary(nn.Module):
    """cos and sin of every position that can be served; one table serves all layers of a kind.

    After the model's own table follow those of adapters with their own rope scaling.
    """

    def __init__(self, settings: RopeSettings, device: str) -> None:
        super().__init__()
        self.size = settings.size
        self.num_positions, self.factors = settings.served_positions, settings.factors
        positions = torch.arange(self.num_positions, dtype=torch.float32)
        cos, sin = [], []
        for one in (settings, *scaled(settings)):
            frequencies, scale = one.frequencies(one)
            angles = torch.outer(positions, frequencies)
            cos.append(angles.cos() * scale)
            sin.append(angles.sin() * scale)
        self.register_buffer("cos", torch.cat(cos).to(device), persistent=False)
        self.register_buffer("sin", torch.cat(sin).to(device), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rope:
        """Return the rotations of a step's tokens. Shapes: positions [T]"""
        at = self.rows_of(positions).contiguous()
        return Rope(at, self.get_buffer("cos"), self.get_buffer("sin"))

    def rows_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the table rows of the tokens' positions, given each one's adapter. Shapes: [.., T]
        -> [.., T]"""
        step = step_adapters()
        if not self.factors or step is None or step.rope_tables is None:
            return positions
        return positions + step.rope_tables * self.num_positions


class Unrotated(nn.Module):
    """The table of layers without positions, whose heads are normed but not rotated."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.register_buffer("table", no_angles(device), persistent=False)

    def forward(self, positions: torch.Tensor) -> Rope:
        """Return the rotations of a step's tokens: none. Shapes: positions [T]"""
        table = self.get_buffer("table")
        return Rope(positions.contiguous(), table, table)


def no_angles(device: str) -> torch.Tensor:
    """Return a table of cos or sin that rotates no feature. Shapes: [1, 0]"""
    return torch.empty(1, 0, dtype=torch.float32, device=device)


def apply_rotary(
    x: torch.Tensor, rope: Rope, head_size: int, *, is_interleaved: bool = False
) -> torch.Tensor:
    """Return x with the first part of every head rotated; pairs are (i, i + size / 2), or (2 i, 2 i
    + 1) if interleaved.

    Shapes: x [T, H*D] -> [T, H*D]
    """
    cos, sin = rope.rows()
    half = cos.shape[-1]
    heads = x.unflatten(-1, (-1, head_size))
    turned, rest = heads[..., : 2 * half].float(), heads[..., 2 * half :]
    pairs = turned.unflatten(-1, (-1, 2)) if is_interleaved else turned.unflatten(-1, (2, -1))
    axis = -1 if is_interleaved else -2
    first, second = pairs.unbind(axis)
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=axis)
    return torch.cat([pairs.flatten(-2).to(x.dtype), rest], dim=-1).flatten(-2)


class HeadRotary:
    """Norms (in models with head norms) and rotates one layer's q and k heads.

    A norm is an RMSNorm of one head, which the kernels support, or any module of all heads
    concatenated. `norms_turned`: heads are normed after rotation. Not a module: the norms belong to
    the model, under their checkpoint names.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        is_interleaved: bool = False,
        norms_turned: bool = False,
    ) -> None:
        self._head_size, self._is_interleaved = head_size, is_interleaved
        self._sizes = [n * head_size for n in (num_heads, num_kv_heads, num_kv_heads)]
        self._norms, self._norms_turned = (q_norm, k_norm), norms_turned
        self._no_angles = no_angles(context.device)
        self._fuses = all(norm is None or isinstance(norm, RMSNorm) for norm in self._norms)
        counts = [(num_heads, num_kv_heads)] if self._fuses else [(num_heads, 0), (num_kv_heads, 0)]
        self._turns = [self._turn_of(context, *count) for count in counts]

    def _turn_of(self, context: BuildContext, num_heads: int, num_kv_heads: int) -> Turn | None:
        """Return the kernel that norms and rotates all heads in one call, or None if torch does
        it."""
        rules: dict[str, Any] = {"is_interleaved": self._is_interleaved}
        norms = [norm for norm in self._norms if isinstance(norm, RMSNorm)]
        if self._fuses and norms:
            assert len({norm.eps for norm in norms}) == 1
            rules |= {"eps": norms[0].eps, "offset": norms[0].offset}
        if runs_natively(qk_rotary.OP, context):
            return QkRotary(num_heads, num_kv_heads, self._head_size, **rules)
        run = fused_kernel(qk_rotary.OP, context)
        if run is None:
            return None
        return partial(run, num_heads=num_heads, num_kv_heads=num_kv_heads, **rules)

    def __call__(
        self, qkv: torch.Tensor, rope: Rope | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k, v. Shapes: qkv [T, (H+2K)*D] -> [T, H*D], [T, K*D], [T, K*D]

        Without `rope` heads are only normed, if at all. Mutates: qkv, if there is a kernel
        """
        if self._fuses and rope is not None and (turn := self._turns[0]) and not is_traced():
            self._fused(turn, qkv, rope)
            q, k, v = qkv.split(self._sizes, dim=-1)
            return q, k, v
        q, k, v = qkv.split(self._sizes, dim=-1)
        turns = (None, None) if self._fuses else self._turns
        q, k = (
            self._apart(x, norm, rope, turn)
            for x, norm, turn in zip((q, k), self._norms, turns, strict=True)
        )
        return q, k, v

    def _fused(self, turn: Turn, qkv: torch.Tensor, rope: Rope) -> None:
        """Norm and rotate the heads in place. Mutates: qkv"""
        q_weight, k_weight = (None if n is None else n._parameters["weight"] for n in self._norms)
        weights = {"q_weight": q_weight, "k_weight": k_weight}
        if not self._norms_turned:
            turn(qkv, rope.cos, rope.sin, rope.positions, **weights)
            return
        turn(qkv, rope.cos, rope.sin, rope.positions)
        turn(qkv, self._no_angles, self._no_angles, rope.positions, **weights)

    def _apart(
        self, x: torch.Tensor, norm: nn.Module | None, rope: Rope | None, turn: Turn | None
    ) -> torch.Tensor:
        """Return the heads of q or of k normed and rotated. Mutates: x, if there is a kernel"""
        if not self._norms_turned:
            x = self._normed(x, norm)
        if rope is not None and not rope.is_still:
            x = self._turned(x, rope, turn)
        return self._normed(x, norm) if self._norms_turned else x

    def _turned(self, x: torch.Tensor, rope: Rope, turn: Turn | None) -> torch.Tensor:
        if turn is None or is_traced():
            return apply_rotary(x, rope, self._head_size, is_interleaved=self._is_interleaved)
        turn(x, rope.cos, rope.sin, rope.positions)
        return x

    def _normed(self, x: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
        if norm is None:
            return x
        if not isinstance(norm, RMSNorm):
            whole: torch.Tensor = norm(x)
            return whole
        heads: torch.Tensor = norm(x.unflatten(-1, (-1, self._head_size)))
        return heads.flatten(-2)
