"""Calibration: runs a text through the model's own forward pass, one block at a time.

The model is transformers', without weights. A block gets its weights when its turn comes, and they
are dropped afterwards. Between blocks only the hidden states of the text are in memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantizer import Block, Inputs
from dovetail_plugins.quantize.linears import Names, make_plain
from dovetail_plugins.quantize.source import CheckpointSource

BATCH_WINDOWS = 4
"""How many windows go through a block together."""
NO_TEXT = "use a method without a text: int8, int4, fp8."
NOT_BUILT = (ValueError, KeyError, ImportError, AttributeError, TypeError, RuntimeError)


class Calibration:
    """The hidden states of the text as they move through the blocks.

    `measure` and `advance` are called alternately, block by block.
    """

    def __init__(
        self,
        model: ModelSpec,
        source: CheckpointSource,
        windows: torch.Tensor,
        *,
        only_squares: bool = False,
    ) -> None:
        self._source, self._only_squares = source, only_squares
        causal = _built(model)
        trunk = getattr(causal, causal.base_model_prefix)
        self._name_of = Names(source.shapes, causal.base_model_prefix)
        path, self._blocks = _find_blocks(model, causal)
        self.names = [f"{path}.{number}" for number in range(len(self._blocks))]
        for name, block in zip(self.names, self._blocks, strict=True):
            make_plain(block, name, self._name_of)
        self._stored = [self._stored_names(number) for number in range(len(self._blocks))]
        self.hidden, self._calls = _first_states(
            model, causal, trunk, self._blocks, windows, source, self._name_of
        )

    @property
    def inside(self) -> frozenset[str]:
        """Return the checkpoint's names of all tensors in blocks."""
        return frozenset(name for names in self._stored for name in names.values())

    def stored_names(self, number: int) -> Mapping[str, str]:
        """Return parameter -> tensor name in the checkpoint, for one block."""
        return self._stored[number]

    @torch.no_grad()
    def measure(self, number: int) -> Block:
        """Return a block with its weights and the statistics of its linear layers' inputs."""
        name, block = self.names[number], self._blocks[number]
        tensors = self._weights(number)
        _assign(block, tensors)
        recorder = Recorder(only_squares=self._only_squares)
        with recorder.watching(block):
            self._run(number)
        return Block(name=name, tensors=tensors, inputs=recorder.inputs())

    @torch.no_grad()
    def advance(self, number: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Run the text through a block with these weights, then drop the weights. Mutates: self"""
        block = self._blocks[number]
        _assign(block, tensors)
        self.hidden = self._run(number)
        block.to("meta")

    @torch.no_grad()
    def change(self, number: int, tensors: Mapping[str, torch.Tensor]) -> float:
        """Return the relative change of a block's output for part of the text when its weights are
        replaced by these. Mutates: self"""
        before = self._part(number, slice(BATCH_WINDOWS))
        _assign(self._blocks[number], tensors)
        after = self._part(number, slice(BATCH_WINDOWS))
        return float((after - before).norm() / before.norm())

    def _run(self, number: int) -> torch.Tensor:
        """Return the output of a block for the text. Shapes: -> [S, L, E]"""
        starts = range(0, len(self.hidden), BATCH_WINDOWS)
        return torch.cat([self._part(number, slice(s, s + BATCH_WINDOWS)) for s in starts])

    def _part(self, number: int, part: slice) -> torch.Tensor:
        """Return the output of a block for some of the windows."""
        count = len(self.hidden)
        call = {name: _cut(value, part, count) for name, value in self._calls[number].items()}
        found = self._blocks[number](self.hidden[part], **call)
        output: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return output

    def _weights(self, number: int) -> dict[str, torch.Tensor]:
        """Return a block's parameters in float32."""
        names = {stored: own for own, stored in self._stored[number].items()}
        found = self._source.those(lambda stored: stored in names)
        return {names[stored]: tensor.float() for stored, tensor in found.items()}

    def _stored_names(self, number: int) -> dict[str, str]:
        """Raises: ConfigError if the checkpoint lacks a parameter"""
        stored_as = {}
        for own, _ in self._blocks[number].named_parameters():
            full = f"{self.names[number]}.{own}"
            stored = self._name_of(full)
            if stored is None:
                raise ConfigError(
                    f"{full} is not among the checkpoint's tensors: transformers holds this layer "
                    "in another form.",
                    where="--calibration",
                    fix=NO_TEXT,
                )
            stored_as[own] = stored
        return stored_as


class Recorder:
    """Sums over the inputs of linear layers. Layers with the same input tensor share one sum.

    `only_squares`: of products the squares alone, which take much less time and memory.
    """

    def __init__(self, *, only_squares: bool = False) -> None:
        self._only_squares = only_squares
        self._sums: dict[str, _Sums] = {}
        self._seen: dict[int, tuple[torch.Tensor, _Sums]] = {}

    @contextmanager
    def watching(self, block: nn.Module) -> Iterator[None]:
        """Record all linear layers of a block inside a with block."""
        hooks = [
            module.register_forward_pre_hook(self._hook(name))
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear)
        ]
        hooks.append(block.register_forward_hook(self._forget))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._seen.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def see(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            x = given[0]
            if id(x) in self._seen:
                self._sums.setdefault(name, self._seen[id(x)][1])
                return
            sums = self._sums.setdefault(name, _Sums(x.shape[-1], self._only_squares))
            sums.add(x.reshape(-1, x.shape[-1]))
            self._seen[id(x)] = (x, sums)  # holding it ensures that no other tensor gets its id

        return see

    def _forget(self, *_: object) -> None:
        """Release the inputs of a pass. Mutates: self"""
        self._seen.clear()

    def inputs(self) -> dict[str, Inputs]:
        """Return layer -> its inputs; layers with the same inputs share the object."""
        distinct = {id(sums): sums for sums in self._sums.values()}
        done = {key: sums.mean() for key, sums in distinct.items()}
        return {name: done[id(sums)] for name, sums in self._sums.items()}


class _Sums:
    def __init__(self, size: int, only_squares: bool) -> None:
        self._gram = torch.zeros(size) if only_squares else torch.zeros(size, size)
        self._magnitude = torch.zeros(size)
        self._count = 0

    def add(self, x: torch.Tensor) -> None:
        """Add tokens. Shapes: x [T, I]. Mutates: self"""
        if self._gram.dim() == 1:
            self._gram += x.square().sum(0)
        else:
            self._gram.addmm_(x.T, x)
        self._magnitude += x.abs().sum(0)
        self._count += len(x)

    def mean(self) -> Inputs:
        """Return the means, computed in place; call it once. Mutates: self"""
        return Inputs(
            gram=self._gram.div_(self._count),
            magnitude=self._magnitude.div_(self._count),
            num_tokens=self._count,
        )


class _Stub:
    """Replaces the forward of a block: records its arguments and returns its input."""

    def __init__(
        self, block: nn.Module, calls: list[dict[str, Any]], first: list[torch.Tensor]
    ) -> None:
        self._calls, self._first = calls, first
        self._names = list(inspect.signature(block.forward).parameters)[1:]

    def __call__(self, hidden_states: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        self._first.append(hidden_states)
        self._calls.append({**dict(zip(self._names, rest, strict=False)), **named})
        return hidden_states


def _built(model: ModelSpec) -> Any:
    """Return transformers' causal model without weights. Raises: ConfigError with the reason"""
    import transformers
    from transformers.initialization import no_init_weights

    fields = {k: v for k, v in model.hf_config.items() if k not in ("model_type", "dtype")}
    try:
        config = transformers.AutoConfig.for_model(model.hf_config["model_type"], **fields)
        with no_init_weights():  # allocated memory is never touched, so it takes no RAM
            causal = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager"
            )
    except NOT_BUILT as error:
        raise _unfit(model, f"transformers cannot build it: {error!r}") from error
    for module in causal.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            hollow = nn.Parameter(parameter.to("meta"), requires_grad=False)
            module.register_parameter(name, hollow)
    return causal.eval()


def _find_blocks(model: ModelSpec, causal: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the list of the model's blocks and its name. Raises: ConfigError"""
    for name, module in causal.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.num_layers:
            return name, module
    raise _unfit(model, f"it has no list of {model.num_layers} blocks")


def _first_states(
    model: ModelSpec,
    causal: nn.Module,
    trunk: nn.Module,
    blocks: nn.ModuleList,
    windows: torch.Tensor,
    source: CheckpointSource,
    name_of: Names,
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Return the first block's hidden states, and the other arguments of every block.

    The model runs once with blocks that do nothing. Shapes: windows [S, L] -> [S, L, E]
    """
    names = {id(parameter): name for name, parameter in causal.named_parameters()}
    inside = {id(parameter) for parameter in blocks.parameters()}
    wanted = {names[id(p)] for p in trunk.parameters() if id(p) not in inside}
    stored = {name_of(own): own for own in wanted}
    tensors = source.those(lambda name: name in stored)
    outer = {stored[name]: tensor.float() for name, tensor in tensors.items()}
    if outer.keys() != wanted:
        raise _unfit(model, f"{sorted(wanted - outer.keys())[0]} is not in the checkpoint")
    causal.load_state_dict(outer, strict=False, assign=True)
    first: list[torch.Tensor] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        block.forward = _Stub(block, calls, first)
    try:
        with torch.no_grad():
            trunk(input_ids=windows, use_cache=False)
    except NOT_BUILT as error:
        raise _unfit(model, f"its blocks cannot be run one by one: {error!r}") from error
    for block in blocks:
        del block.forward
    trunk_states = first[0]
    if len(calls) != len(blocks) or any(state is not trunk_states for state in first):
        raise _unfit(model, "its blocks do not follow each other")
    return trunk_states, calls


def _assign(block: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Assign a block its weights without copying. Mutates: block"""
    block.load_state_dict(dict(tensors), strict=False, assign=True)


def _cut(value: Any, part: slice, count: int) -> Any:
    """Return an argument for some of the windows; tensors with one entry per window are sliced."""
    if isinstance(value, tuple):
        return tuple(_cut(one, part, count) for one in value)
    is_per_window = isinstance(value, torch.Tensor) and value.dim() > 1 and len(value) == count
    return value[part] if is_per_window else value


def _unfit(model: ModelSpec, reason: str) -> ConfigError:
    return ConfigError(
        f"{model.architecture} cannot be calibrated: {reason}.",
        where="--calibration",
        fix=NO_TEXT,
    )
