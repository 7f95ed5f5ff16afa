"""Checkpoint tensors that are a parameter's memory until its layer has packed them.

A parameter that is packed and dropped as soon as it is full needs no copy of what fills it: a
tensor in a mapped file is then read once, by what packs it.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.layers.linear.placement import Placement, axes_of


def may_borrow(parameter: nn.Parameter) -> None:
    """Let a tensor that fills a whole matrix be its memory. Only for layers whose `finish` keeps
    nothing of it. Mutates: parameter"""
    output, input = axes_of(parameter)
    vars(parameter)["may_borrow"] = output is not None and input is not None


def borrowed(module: nn.Module, placement: Placement, tensor: torch.Tensor) -> bool:
    """Make a tensor the memory of the parameter that it fills; return whether that could be done.
    Mutates: module"""
    parameter = module.get_parameter(placement.name)
    if not vars(parameter).get("may_borrow") or placement.target.shape != parameter.shape:
        return False
    own, piece = parameter.data, placement.cut(tensor)
    if piece.dtype != own.dtype or piece.device != own.device or not piece.is_contiguous():
        return False
    parameter.data = piece
    vars(parameter)["is_borrowed"] = True
    return True


Pieces = dict[tuple[str, int], tuple[Placement, torch.Tensor]]
"""The tensors that would fill a parameter, and where, by piece and offset."""


def pieces_of(parameter: nn.Parameter) -> Pieces | None:
    """Return what would fill a parameter that is not to be filled; None: it is filled."""
    return vars(parameter).get("pieces")


def noted(pieces: Pieces, placement: Placement, tensor: torch.Tensor) -> bool:
    """Note what would fill a piece of a parameter; return whether nothing else did. Mutates:
    pieces"""
    place = placement.piece, int(placement.target.storage_offset())
    first = pieces.setdefault(place, (placement, tensor))[1]
    return first is tensor or torch.equal(first, tensor.to(first))


def settle(module: nn.Module, path: str) -> None:
    """Give a parameter that has not been packed a copy of what it borrowed. Mutates: module"""
    owner, _, leaf = path.rpartition(".")
    parameter = module.get_submodule(owner)._parameters.get(leaf)
    if parameter is not None and vars(parameter).pop("is_borrowed", False):
        parameter.data = parameter.data.clone()
