"""A trial run without memory for weights: creates the model and matches the tensors with it.

It runs the code of `loader` on torch's meta device, so it refuses what an engine would refuse.
Reads no weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.load_format import Checkpoint
from dovetail.layers.dtypes import DTYPES, dtype_of
from dovetail.runner.load.loader import build_model, fill, method_of

META = torch.device("meta")
PLAIN = "none"
"""The quantization method of tensors stored in the model's own format."""


def try_out(run: RunSpec) -> None:
    """Create the model and match its tensors. Raises: ConfigError that serving would raise"""
    quant = method_of(run)
    try:
        module = build_model(run, META, quant)
    except ConfigError as error:
        if error.__cause__ is None:  # the plugin itself refuses
            raise
        # Code that reads values, which the meta device lacks, is tried in memory that is never
        # filled and therefore never taken.
        module = build_model(run, torch.device("cpu"), quant)
        _forget_values(module)
    headers = list(_headers(run) or ())
    if headers and run.quantization.name == PLAIN and all(h.dtype in DTYPES for h in headers):
        empty = ((h.name, _empty(h)) for h in headers)
        fill(module, empty, quant, run.rank, repacks=False)


def _forget_values(module: nn.Module) -> None:
    """Move all parameters, with their attributes, to the meta device. Mutates: module"""
    moved: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in moved:
                empty = nn.Parameter(parameter.data.to(META), requires_grad=False)
                vars(empty).update(vars(parameter))
                moved[id(parameter)] = empty
            owner._parameters[name] = moved[id(parameter)]


def _headers(run: RunSpec) -> Iterable[TensorHeader] | None:
    """Return the headers of the files' tensors; None if the format has none."""
    ignored = tuple(run.load_options.get("ignore_patterns", ()))
    load_format = registry.make(run.load_format)
    found: Iterable[TensorHeader] | None = load_format.headers(
        Checkpoint(path=run.model.path, ignore_patterns=ignored)
    )
    return found


def _empty(header: TensorHeader) -> torch.Tensor:
    return torch.empty(header.shape, dtype=dtype_of(header.dtype), device=META)
