"""TrunkCall: a trunk of transformers run over tokens whose positions are given.

Most trunks take positions. Some count their tokens themselves, from the first that they are given,
and hand the numbers to a table of positions: there the table is given the right ones.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

POSITIONS = "position_ids"


class TrunkCall:
    """Runs `trunk`; `is_possible` says whether it, or its tables, take positions."""

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk = trunk
        self._takes_positions = _takes_positions(trunk)
        self._positions: torch.Tensor | None = None
        tables = [] if self._takes_positions else [m for m in trunk.modules() if _is_table(m)]
        for table in tables:
            table.register_forward_pre_hook(self._tell, with_kwargs=True)
        self.is_possible = self._takes_positions or bool(tables)

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor | None) -> Any:
        """Return the trunk's output for one text; None: it counts positions itself.
        Shapes: token_ids, positions [T]"""
        if self._takes_positions:
            more = {} if positions is None else {POSITIONS: positions.unsqueeze(0)}
            return self._trunk(input_ids=token_ids.unsqueeze(0), use_cache=False, **more)
        self._positions = positions
        return self._trunk(input_ids=token_ids.unsqueeze(0), use_cache=False)

    def _tell(self, table: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a table's arguments with the positions that the trunk was called with."""
        return args, kwargs if self._positions is None else {**kwargs, POSITIONS: self._positions}


def unwrapped(name: str, module: nn.Module) -> tuple[str, nn.Module]:
    """Return a trunk's path and the trunk, without a wrapper that passes everything on."""
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    children = list(module.named_children())
    if len(children) == 1 and kinds == {inspect.Parameter.VAR_POSITIONAL,
                                        inspect.Parameter.VAR_KEYWORD}:  # fmt: skip
        return f"{name}.{children[0][0]}", children[0][1]
    return name, module


def _takes_positions(module: nn.Module) -> bool:
    return POSITIONS in inspect.signature(module.forward).parameters


def _is_table(module: nn.Module) -> bool:
    """Return whether a module looks up positions, independent of padding."""
    is_embedding = isinstance(module, nn.Embedding) and module.padding_idx is None
    return is_embedding and _takes_positions(module)
