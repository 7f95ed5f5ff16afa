"""Sampler: a logits processor that numbers of the request set, for all its rows in one pass."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens

if TYPE_CHECKING:
    import torch

ORDERED = "sampler_steps"
"""The entry of `extra_args` for the steps of a request whose order is its own."""
Values = Mapping[str, float]
NO_TRUNCATION = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The values with which the sampler's own filters leave all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A number of a sampler: what it means, its default and bounds (inclusive), and its names on
    other servers."""

    what: str
    default: float
    low: float
    high: float
    is_whole: bool = False
    others: tuple[str, ...] = ()

    def read(self, value: Any, where: str) -> float:
        """Return a value as a number. Raises: RequestError naming the field"""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_within = is_number and math.isfinite(value) and self.low <= value <= self.high
        if is_within and (not self.is_whole or value == int(value)):
            return float(value)
        kind = "a whole number" if self.is_whole else "a number"
        raise RequestError(f"must be {kind} from {self.low:g} to {self.high:g}.", where=where)


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """A row's tokens, and its settings by name."""

    tokens: RowTokens
    values: Values


class Rows:
    """The rows of one call, in the order of its logits."""

    def __init__(
        self, rows: Sequence[SamplerRow], device: torch.device, min_keep: Sequence[int] = ()
    ) -> None:
        self.rows = rows
        self.device = device
        self.min_keep = min_keep
        """How many tokens a filter leaves at least; empty: 1 for each row."""

    def column(self, name: str) -> torch.Tensor:
        """Return a setting of all rows. Shapes: [S, 1] float64"""
        return column([row.values[name] for row in self.rows], self.device)


def column(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return a number for each row. Shapes: [S] -> [S, 1] float64"""
    import torch

    return torch.tensor(numbers, dtype=torch.float64, device=device).unsqueeze(1)


class Sampler(LogitsProcessor):
    """`settings` are its fields in requests. A null or false field counts as not sent."""

    settings: ClassVar[Mapping[str, Setting]] = {}
    is_by_value: ClassVar[bool] = True
    """Whether a token's outcome depends on its logit, not its id, and on tokens that are left."""

    def __init_subclass__(cls) -> None:
        own = {name: one.what for name, one in cls.settings.items()}
        others = {n: f"the same as {name}" for name, s in cls.settings.items() for n in s.others}
        cls.claims = {**own, **others, **cls.claims}

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self.rows: dict[int, SamplerRow] = {}

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the settings of a request. Raises: RequestError naming the field that is wrong"""
        return {name: _value(params, name, one) for name, one in cls.settings.items()}

    @classmethod
    @abstractmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether these settings change anything."""

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request uses it at its own place, or has a wrong value."""
        extra = params.extra_args
        if not extra or ORDERED in extra or cls.claims.keys().isdisjoint(extra):
            return False
        try:
            return cls.takes_part(params)
        except RequestError:
            return True

    @classmethod
    def takes_part(cls, params: SamplingParams) -> bool:
        """Return whether the request uses it, at any place. Raises: RequestError"""
        return cls.is_on(cls.values_of(params))

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError naming the field that is wrong"""
        cls.values_of(params)

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row."""
        self.rows[tokens.row] = SamplerRow(tokens, self.values_of(tokens.params))

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        self.rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Shape the logits of rows that use it. Shapes: logits [S, V]. Mutates: logits"""
        self.apply_to(logits, rows)

    def apply_to(
        self, logits: torch.Tensor, rows: Sequence[tuple[int, int]], min_keep: Sequence[int] = ()
    ) -> None:
        """Do `apply`, with a lower bound on the tokens left for each of the rows. Mutates:
        logits"""
        import torch

        batch = Rows([self.rows[row] for _, row in rows], logits.device, min_keep)
        indices = [index for index, _ in rows]
        shape = self._shaped_by_few if self.is_by_value else self.shaped
        if indices == list(range(len(logits))):
            shaped = shape(logits, batch)
            if shaped is not logits:
                logits.copy_(shaped)
            return
        at = torch.tensor(indices, device=logits.device)
        logits[at] = shape(logits[at], batch)

    def _shaped_by_few(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return `shaped`, of the tokens that are left alone if they are few.

        Shapes: logits [S, V] -> [S, V]. Mutates: logits
        """
        from dovetail_kernels.sample.few import FEW, FewLeft

        few = FewLeft.of(logits)
        if few is not None:
            few.put_back(self.shaped(few.logits, batch))
            return logits
        if logits.device.type == "cpu":
            return self.shaped(logits, batch)
        count = int((logits > float("-inf")).sum(dim=1).max())
        if not 0 < count * FEW <= logits.shape[1]:
            return self.shaped(logits, batch)
        left, ids = logits.topk(count, dim=1)
        return logits.fill_(float("-inf")).scatter_(1, ids, self.shaped(left, batch))

    @abstractmethod
    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits of rows that all use it; another tensor, or the same one changed.

        Shapes: logits [S, V] -> [S, V]. Mutates: logits
        """


def _value(params: SamplingParams, name: str, setting: Setting) -> float:
    """Return a setting by whichever of its names is sent. Raises: RequestError"""
    extra = params.extra_args
    names = [one for one in (name, *setting.others) if extra.get(one) is not None]
    sent = {one: setting.read(extra[one], one) for one in names if extra[one] is not False}
    if len(set(sent.values())) > 1:
        raise RequestError(f"{' and '.join(sent)} are different.", where=next(iter(sent)))
    return next(iter(sent.values()), setting.default)
