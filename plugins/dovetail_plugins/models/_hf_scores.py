"""Scores: a placeholder for the product of queries and keys in a model's own attention code.

Older models of transformers compute softmax(q kᵀ * scale + mask) v themselves. While such a module
runs, its product of queries and keys is not computed but replaced by a `Scores`, which records the
operations on it; the product with the values then attends. Any other operation on it is an error,
so a model is served only if its code means what an attention backend does. A trial pass finds this
out; in every later pass the layer that it made attends.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dovetail.errors import ConfigError

Attend = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, Any, float], torch.Tensor]
"""Maps a module, its queries, keys and values [1, H, T, D], its mask (None: none) and the scale to
the attended values [1, T, H, D]."""

PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
FAR = -1e3
"""A score bias of this or less hides a key."""


class Scores:
    """Products of queries and keys of one module, or their softmax (`is_softmax`).

    `keeps` is a table of zeros and ones by which they were multiplied, if they were.
    """

    def __init__(self, scoring: Scoring, query: torch.Tensor, key: torch.Tensor) -> None:
        self._scoring = scoring
        self._query, self._key = query, key
        self._scale = 1.0
        self._mask: Any = None
        self._keeps: torch.Tensor | None = None
        self._is_softmax = False
        self.shape = torch.Size((*query.shape[:-1], key.shape[-1]))
        self.dtype, self.device = query.dtype, query.device

    def size(self, dim: int | None = None) -> Any:
        """Return the shape that the products would have, or one of its numbers."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def view(self, *shape: Any) -> Scores:
        """Return itself in a shape that has the same two axes at its end. Mutates: self"""
        wanted = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in wanted:
            rest = math.prod(n for n in wanted if n != -1)
            wanted[wanted.index(-1)] = math.prod(self.shape) // rest
        is_same = tuple(wanted[-2:]) == tuple(self.shape[-2:])
        if not is_same or math.prod(wanted) != math.prod(self.shape):
            raise _odd("takes scores apart")
        self.shape = torch.Size(wanted)
        return self

    reshape = view

    def to(self, *args: Any, **kwargs: Any) -> Scores:
        """Return itself: attention backends choose the type that they compute in."""
        return self

    def contiguous(self) -> Scores:
        """Return itself."""
        return self

    type_as = to

    def __mul__(self, other: Any) -> Scores:
        """Return the products multiplied by a number, or by a table that hides keys."""
        if isinstance(other, torch.Tensor) and other.dim() > 1:
            self._check("multiplies scores")
            self._keeps, self._scoring.has_tables = other, True
            return self
        return self._scaled(other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Scores:
        """Return the products divided by a number."""
        return self._scaled(other, operator.truediv)

    def __add__(self, other: Any) -> Scores:
        """Return the products with a mask laid over them."""
        if self._scoring.is_trial:
            self._hide(other)
        return self

    __radd__ = __add__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the result of a torch function on scores. Raises: ConfigError for others"""
        kwargs = kwargs or {}
        scores = next((one for one in args if isinstance(one, Scores)), None)
        if scores is None:
            raise _odd(f"passes scores to {getattr(func, '__name__', func)}")
        if func in PRODUCTS and args[0] is scores:
            return scores._attended(args[1])
        return scores._done(func, args, kwargs)

    def _done(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Scores:
        name = getattr(func, "__name__", str(func))
        other = next((one for one in args if one is not self), None)
        if name == "softmax":
            dim = kwargs.get("dim", other)
            if dim not in (-1, self.dim() - 1) or self._is_softmax:
                raise _odd("takes chances over another axis")
            self._is_softmax = True
        elif name == "dropout":
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            if training and kwargs.get("p", other):
                raise _odd("drops chances")
        elif name in ("mul", "__mul__", "__rmul__", "multiply"):
            return self * other
        elif name in ("div", "__truediv__", "true_divide") and args[0] is self:
            return self / other
        elif name in ("add", "__add__", "__radd__") and kwargs.get("alpha", 1) == 1:
            return self + other
        else:
            raise _odd(f"applies {name} to scores")
        return self

    def _scaled(self, other: Any, combine: Callable[[Any, Any], Any]) -> Scores:
        self._check("scales scores")
        if self._scoring.is_trial:  # later numbers stay where they are, without waiting for them
            self._scale = combine(self._scale, float(other))
        return self

    def _check(self, what: str) -> None:
        if self._is_softmax or self._mask is not None or self._keeps is not None:
            raise _odd(f"{what} behind a mask")

    def _hide(self, other: Any) -> None:
        """Take a mask. Raises: ConfigError for anything else."""
        if self._is_softmax or self._mask is not None:
            raise _odd("adds to scores behind a mask")
        if not isinstance(other, torch.Tensor):
            self._mask = other
            return
        if self._keeps is None:
            raise _odd("adds to scores what is not a mask of transformers'")
        visible, added = self._keeps.expand(self.shape), other.expand(self.shape)
        triangle = torch.ones(self.shape, device=self.device).tril() > 0
        shows = (visible == 1) & (added == 0)
        hides = (visible == 0) & (added <= FAR)
        if not bool(torch.where(triangle, shows, hides).all()):
            raise _odd("has a mask of its own that is not causal")
        self._mask, self._keeps = self._scoring.causal, None

    def _attended(self, value: torch.Tensor) -> torch.Tensor:
        """Return the products of chances and values. Shapes: value [.., T, D] -> the same"""
        if not self._is_softmax:
            raise _odd("multiplies values by scores before a softmax")
        heads = (1, -1)
        query, key, given = (
            x.reshape(*heads, *x.shape[-2:]) for x in (self._query, self._key.mT, value)
        )
        out = self._scoring.attend(query, key, given, self._mask, self._scale)
        return out.transpose(1, 2).reshape(value.shape)


class Scoring(TorchFunctionMode):
    """Makes Scores of a module's products of queries and keys. `causal` is the mask of tokens that
    see all before them."""

    def __init__(self, attend: Attend, causal: Any, *, is_trial: bool) -> None:
        super().__init__()
        self._attend = attend
        self.causal, self.is_trial = causal, is_trial
        self.modules: list[nn.Module] = []
        """The modules that run, the innermost last."""
        self.found: dict[nn.Module, None] = {}
        self.has_tables = False

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: float
    ) -> torch.Tensor:
        """Return the running module's attended values. Mutates: self"""
        module = self.modules[-1]
        self.found[module] = None
        return self._attend(module, query, key, value, mask, scale)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the function's result, or Scores."""
        kwargs = kwargs or {}
        if func in PRODUCTS and not kwargs and _are_scores(*args):
            return Scores(self, *args)
        if func is torch.baddbmm and _are_scores(*args[1:]):
            if self.is_trial and kwargs.get("beta", 1) != 0 and bool(args[0].any()):
                raise _odd("adds to scores what is not a mask of transformers'")
            return Scores(self, *args[1:]) * kwargs.get("alpha", 1)
        return func(*args, **kwargs)

    @contextmanager
    def running(self, module: nn.Module) -> Iterator[None]:
        """Let products inside a with block be a module's. Mutates: self"""
        self.modules.append(module)
        try:
            with self:
                yield
        finally:
            self.modules.pop()

    @contextmanager
    def watching(self, trunk: nn.Module) -> Iterator[None]:
        """Let products inside a with block be of the module that computes them. Mutates: self"""
        hooks: list[Any] = []
        for module in trunk.modules():
            hooks += [
                module.register_forward_pre_hook(lambda one, _: self.modules.append(one)),
                module.register_forward_hook(lambda *_: self._end(), always_call=True),
            ]
        try:
            with self:
                yield
        finally:
            self.modules.clear()
            for hook in hooks:
                hook.remove()

    def _end(self) -> None:
        self.modules.pop()


def attend_in(module: nn.Module, attend: Attend) -> None:
    """Let a module's products of queries and keys attend, from now on. Mutates: module"""
    forward = module.forward
    scoring = Scoring(attend, None, is_trial=False)

    def run(*args: Any, **kwargs: Any) -> Any:
        with scoring.running(module):
            return forward(*args, **kwargs)

    vars(module)["forward"] = run


def _are_scores(*args: Any) -> bool:
    """Return whether tensors are queries and keys of one text: [.., T, D] and [.., D, T]."""
    if len(args) != 2 or not all(isinstance(x, torch.Tensor) for x in args):
        return False
    query, key = args
    is_batched = query.dim() == key.dim() and query.dim() in (3, 4)
    return is_batched and query.shape == key.mT.shape and query.is_floating_point()


def _odd(what: str) -> ConfigError:
    """Return the error for code that no attention backend does."""
    return ConfigError(f"it computes with attention masks itself, and {what}.")
