"""PoolingEnd: turns hidden states of whole prompts into vectors or class scores.

Stores the hidden states of a prompt's earlier steps if its pooler needs more than the last token.
Independent of requests; a fault of one row is reported in that row's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from dovetail import registry
from dovetail.errors import ConfigError, RequestFault
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    SPEAK,
    TOKEN_CLASSIFY,
    PoolingParams,
)
from dovetail.interfaces.data.spec import PoolingSpec, ProjectionSpec
from dovetail.interfaces.data.step import NewRow, Pooled, RowResult
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.pooler import Pooler
from dovetail.layers.activation import activation
from dovetail.registry.blame import described
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import Ending
from dovetail.runner.step.step_reader import BegunStep, Computed

FIRST_TOKEN, LAST_TOKEN = "first_token", "last_token"
_PLACED = frozenset({FIRST_TOKEN, LAST_TOKEN})
FAR = np.iinfo(np.int64).max
LEAST_LENGTH = 1e-12
"""Minimum divisor when a vector is normalized to length 1."""
Layer = Callable[[torch.Tensor], torch.Tensor]


class _Row:
    """A prompt in progress. `kept` are the hidden states of its steps so far."""

    __slots__ = ("fault", "kept", "number", "params")

    def __init__(self, number: int, params: PoolingParams) -> None:
        self.number = number
        self.params = params
        self.kept: list[torch.Tensor] = []
        self.fault: str | None = None


class PoolingEnd(Ending):
    """The end of a run that pools, on the last stage."""

    def __init__(self, spec: PoolingSpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        self._usual = PoolingParams(task=spec.tasks[0])

    def attach(self, loaded: LoadedModel) -> None:
        """Create the poolers and load the layers that follow them. Raises: ConfigError"""
        spec, self._model = self._spec, loaded.model
        whole: Pooler = registry.make(spec.pooler, spec)
        of_tokens: Pooler = registry.make(spec.token_pooler, spec)
        self._poolers = {EMBED: whole, CLASSIFY: whole}
        self._token_pooler = of_tokens
        self._projections = [_BEHIND[one.kind](one, self._device) for one in spec.projections]
        self._skips = not (spec.includes_prompt or _PLACED & whole.capabilities)
        self._rows: dict[int, _Row] = {}

    def allocate(self, storage: Allocated) -> None:
        """Pool the prompts of a batch from now on. Mutates: self"""
        self._batch = storage.batch

    def begin(self, inputs: StepInputs) -> None:
        """Mark the tokens of second texts in a step. Mutates: self.second_text"""
        firsts = [self._rows[step.row].params.first_text_tokens for step in inputs.steps]
        self.second_text = None
        if any(first is not None for first in firsts):
            ends = np.array([FAR if first is None else first for first in firsts])
            marks = inputs.positions >= np.repeat(ends, inputs.counts)
            self.second_text = torch.from_numpy(marks.astype(np.int64)).to(self._device)

    def add_row(self, new: NewRow) -> None:
        """Start a row. Mutates: self"""
        self._rows[new.row] = _Row(new.row, new.pooling or self._usual)

    def free_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._rows.pop(row, None)

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember why a row's result is invalid. Mutates: self"""
        self._rows[row].fault = fault

    def end(self, step: BegunStep, computed: Computed) -> None:
        """Pool the prompts that end in a step. Mutates: self, step"""
        inputs, hidden = step.inputs, computed.hidden
        outcomes: list[tuple[int, torch.Tensor | str | None]] = []
        bounds = inputs.query_start.tolist()
        for index, one in enumerate(inputs.steps):
            row = self._rows[one.row]
            states = hidden[bounds[index] : bounds[index + 1]]
            if row.fault is not None:
                outcomes.append((one.row, row.fault))
            elif one.samples:
                outcomes.append(
                    (one.row, self._pooled(row, states, self._batch.prompt_ids(one.row)))
                )
            else:
                self._keep(row, states)
                outcomes.append((one.row, None))
        step.finish = lambda: tuple(_result(row, what) for row, what in outcomes)

    def _pooler(self, params: PoolingParams) -> Pooler:
        return self._poolers.get(params.task, self._token_pooler)

    def _keep(self, row: _Row, states: torch.Tensor) -> None:
        """Store what the pooler needs of a step that is not a prompt's last. Mutates: row"""
        reads = self._pooler(row.params).capabilities
        if LAST_TOKEN in reads or (FIRST_TOKEN in reads and row.kept):
            return
        row.kept.append((states[:1] if FIRST_TOKEN in reads else states).clone())

    def _pooled(
        self, row: _Row, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor | str:
        """Return a prompt's pooled result, or an error text. Mutates: row"""
        params = row.params
        if row.kept:
            states = torch.cat([*row.kept, states])
            row.kept.clear()
        if self._skips and params.task == EMBED:
            states = states[params.unpooled_tokens :]
            if not len(states):
                return "nothing is left of the prompt beside its instruction."
        pooler = self._pooler(params)
        if len(token_ids) != len(states):
            is_first = FIRST_TOKEN in pooler.capabilities
            token_ids = token_ids[: len(states)] if is_first else token_ids[-len(states) :]
        try:
            if params.task == SPEAK:
                return self._model.speak(states, params.speech)
            states = self._model.task_states(params.task, states, token_ids)
            pooled = pooler.pool(states, token_ids)
            if params.task in (CLASSIFY, TOKEN_CLASSIFY):
                return self._classes(pooled, row)
            return self._vector(pooled, params)
        except RequestFault as fault:
            return fault.what
        except Exception as error:  # a pooler is a plugin: its fault ends only this request
            what = "model failed to speak" if params.task == SPEAK else "pooler failed"
            return f"the {what}: {described(error)}"

    def _classes(self, pooled: torch.Tensor, row: _Row) -> torch.Tensor:
        """Return class scores. Shapes: pooled [E] or [m, E] -> [C] or [m, C]"""
        vectors = pooled.view(-1, pooled.shape[-1])
        with self.around_vectors(row.number, len(vectors)):
            found = self._model.classes(vectors).float()
        if self._spec.returned_token_ids:
            found = found[:, list(self._spec.returned_token_ids)]
        if row.params.is_activated is not False:
            found = _ACTIVATIONS[self._spec.activation](found)
        return found if pooled.dim() == 2 else found[0]

    def _vector(self, pooled: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """Return vectors in their final form. Shapes: [..., E] -> [..., dimensions]"""
        pooled = pooled.float()
        for project in self._projections:
            pooled = project(pooled)
        size = params.dimensions or self._spec.dimensions
        if size is not None:
            pooled = pooled[..., :size]
        wants = params.is_normalized
        if self._spec.is_normalized if wants is None else wants:
            pooled = _to_length_1(pooled)
        return pooled


def _dense(spec: ProjectionSpec, device: torch.device) -> Layer:
    """Return activation(x W^T + b) with the weights of its folder. Raises: ConfigError"""
    weight, bias = _tensors(spec, device, spec.name, has_bias=spec.has_bias)
    act = activation(spec.activation) if spec.activation else _identity
    return lambda x: act(F.linear(x, weight, bias))


def _norm(spec: ProjectionSpec, device: torch.device) -> Layer:
    """Return a LayerNorm with the weights of its folder. Raises: ConfigError"""
    weight, bias = _tensors(spec, device, "norm", has_bias=True)
    return lambda x: F.layer_norm(x, (spec.out_size,), weight, bias)


def _to_length_1(x: torch.Tensor) -> torch.Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min_(LEAST_LENGTH)


_BEHIND: dict[str, Callable[[ProjectionSpec, torch.device], Layer]] = {
    "dense": _dense,
    "norm": _norm,
    "normalize": lambda spec, device: _to_length_1,
}
"""Creates the layers after a pooler, by the kind of their ProjectionSpec."""


def _tensors(
    spec: ProjectionSpec, device: torch.device, name: str, *, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a layer's weight and bias in float32. Raises: ConfigError if one is missing or has the
    wrong size"""
    stored = _stored(Path(spec.folder))
    wanted = {"weight": (spec.out_size, spec.in_size) if spec.kind == "dense" else (spec.out_size,)}
    wanted |= {"bias": (spec.out_size,)} if has_bias else {}
    for leaf, shape in wanted.items():
        tensor = stored.get(f"{name}.{leaf}")
        if tensor is None or tuple(tensor.shape) != shape:
            found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise ConfigError(
                f"{name}.{leaf} is {found}; the layer wants {list(shape)}.", where=spec.folder
            )
    taken = [stored[f"{name}.{leaf}"].float().to(device) for leaf in wanted]
    return taken[0], taken[1] if has_bias else None


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder. Raises: ConfigError if it has no readable file"""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if folder.is_file():
        reader = registry.load("load_format", "auto")
        return dict(reader(reader.Options()).tensors(Checkpoint(path=str(folder))))
    try:
        if (folder / "model.safetensors").is_file():
            return load_file(folder / "model.safetensors")
        found: dict[str, torch.Tensor] = torch.load(
            folder / "pytorch_model.bin", map_location="cpu", weights_only=True
        )
        return found
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(
            f"the weights of this layer cannot be read: {error}.", where=str(folder)
        ) from error


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": _identity,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(dim=-1),
}


def _result(row: int, outcome: torch.Tensor | str | None) -> RowResult:
    """Return a row's result: numbers, a fault, or nothing yet."""
    if outcome is None:
        return RowResult(row=row)
    if isinstance(outcome, str):
        return RowResult(row=row, fault=outcome)
    numbers = outcome.detach().cpu().numpy()
    if not np.isfinite(numbers).all():
        return RowResult(row=row, fault="the model's numbers for this prompt are not finite.")
    return RowResult(row=row, pooled=Pooled(shape=numbers.shape, data=numbers.tobytes()))
