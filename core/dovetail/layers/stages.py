"""Stage: the parts of a model that a rank builds if the layers are divided over a pipeline.

A model creates each of its parts through its Stage: token tables on the first stage, layers on the
stage that has their numbers, the final norm and the head on the last stage. A part of another stage
is an Elsewhere: it has no weights, ignores the checkpoint's and returns its input. So a model's
`forward` is written once:

    x = self.embed(token_ids) if self.stage.is_first else self.stage.received(token_ids)
    for layer in self.layers:
        x = layer(x)
    return self.norm(x)

Stages exchange only the hidden states between two layers, one row per token.
Source: Huang et al., GPipe, 2019; Narayanan et al., PipeDream, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.context import forward_context
from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail.layers.opaque import is_traced
from dovetail.layers.weights import map_name

M = TypeVar("M", bound=nn.Module)


class AbsentStage(WeightHolder):
    """Placeholder for a part on another stage."""

    def forward(self, x: torch.Tensor, *others: object) -> torch.Tensor:
        """Return x."""
        return x

    def place(self, leaf: str, part: str | None) -> list[Placement]:
        """Return no placement: the checkpoint's tensor is not needed here."""
        return []

    def pieces(self, leaf: str) -> set[str]:
        """Return an empty set: there is no parameter."""
        return set()


class Stage(nn.Module):
    """This rank's part of the layers; without a pipeline all of them. `inbox` is the buffer of
    hidden states received from the previous stage, with `width` numbers per token: the hidden size,
    or more in families that pass more between layers. Shapes: inbox [tokens of the largest step,
    width]"""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        rank = context.rank
        self.is_first, self.is_last = rank.is_first_stage, rank.is_last_stage
        self.numbers = rank.layers(context.model.num_layers)
        self._num_layers = context.model.num_layers
        self.width = context.model.hidden_size
        self.inbox: torch.Tensor | None = None

    def layers(self, make: Callable[[int], nn.Module]) -> nn.ModuleList:
        """Return all layers: this stage's created by number, Elsewhere for the others."""
        numbers = range(self._num_layers)
        return nn.ModuleList(make(i) if i in self.numbers else AbsentStage() for i in numbers)

    def first(self, make: Callable[[], M]) -> M:
        """Return a part that only the first stage has, such as a table of positions."""
        return made_if(self.is_first, make)

    def last(self, make: Callable[[], M]) -> M:
        """Return a part that only the last stage has, such as the head and the norm before it."""
        return made_if(self.is_last, make)

    def table(self, make: Callable[[], M], *, is_tied: bool) -> M:
        """Return the token table, which the last stage also has if the head is tied to it."""
        return made_if(self.is_first or (is_tied and self.is_last), make)

    def received(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of a step's tokens, received from the previous stage.
        Shapes: token_ids [T] -> [T, width]"""
        assert self.inbox is not None, "nothing has been received: the runner sets the inbox"
        first = 0 if is_traced() else forward_context().first_token
        return self.inbox[first : first + len(token_ids)]


def made_if(is_here: bool, make: Callable[[], M]) -> M:
    """Return the part, or a placeholder that is called in the same way."""
    return make() if is_here else cast(M, AbsentStage())


def stage_of(module: nn.Module) -> Stage | None:
    """Return the stage that a model was built with, None for models without pipeline support."""
    return next((one for one in module.modules() if isinstance(one, Stage)), None)


def is_elsewhere(module: nn.Module, weight_map: WeightMap, name: str) -> bool:
    """Return whether a checkpoint tensor is only needed on other stages."""
    target = map_name(weight_map, name)
    if target is None:
        return False
    owner: nn.Module | None = module
    for word in target.path.split("."):
        if owner is None or isinstance(owner, AbsentStage):
            break
        owner = owner._modules.get(word)
    return isinstance(owner, AbsentStage)
