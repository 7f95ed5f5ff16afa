"""PoolingEnd: prompts in parts, vectors and classes as asked, second texts, faults of a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dovetail.engine.client.results.outputs import numbers
from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import (
    CLASSIFY,
    EMBED,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    PoolingParams,
)
from dovetail.interfaces.data.spec import PoolingSpec, ProjectionSpec, Selection
from dovetail.interfaces.data.step import RowResult
from dovetail.interfaces.model import Model
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler
from dovetail.runner.endings.pooling import PoolingEnd
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.step.step_reader import Computed

SIZE = 4
BROKEN_ID = 99


class Mean(Pooler):
    """The mean of all states; fails on one token."""

    info = Info(summary="mean")

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the mean."""
        assert len(hidden) == len(token_ids)
        if BROKEN_ID in token_ids:
            raise ValueError("a token that it cannot stand")
        return hidden.mean(dim=0)


class Last(Pooler):
    """The last token's state."""

    info = Info(summary="last")
    capabilities: ClassVar[frozenset[str]] = frozenset({"last_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the last state."""
        return hidden[-1]


class Each(Pooler):
    """Every token's state."""

    info = Info(summary="each")
    capabilities: ClassVar[frozenset[str]] = frozenset({"per_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return all states."""
        return hidden


class Doubling:
    """A model whose two classes are the first number of a state, and its double."""

    def task_states(
        self, task: str, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return the hidden states. Shapes: states [n, E] -> [n, E]"""
        return states

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the classes. Shapes: [S, E] -> [S, 2]"""
        assert pooled.dim() == 2
        return pooled[:, :1] * torch.tensor([1.0, 2.0])


def selection(pooler: type[Pooler]) -> Selection:
    return Selection(kind="pooler", name="own", target=f"{__file__}:{pooler.__name__}")


def pooling(pooler: type[Pooler] = Mean, **fields: Any) -> PoolingEnd:
    tasks = (EMBED, TOKEN_EMBED, CLASSIFY, TOKEN_CLASSIFY)
    spec = PoolingSpec(
        **{"tasks": tasks, "pooler": selection(pooler), "token_pooler": selection(Each), **fields}
    )
    made = PoolingEnd(spec, torch.device("cpu"))
    made.around_vectors = lambda row, count: nullcontext()
    made.attach(LoadedModel(model=cast(Model, Doubling()), build_s=0, weights_s=0))
    return made


class Prompts:
    """What the runner knows of the rows' prompts."""

    def __init__(self, ids: dict[int, Sequence[int]]) -> None:
        self.ids = ids

    def prompt_ids(self, row: int) -> Sequence[int]:
        """Return a row's prompt."""
        return self.ids[row]


STATES = torch.arange(40, dtype=torch.float32).reshape(10, SIZE).sin()


def step(
    made: PoolingEnd, parts: Sequence[tuple[int, int, int, bool]], **prompts: Sequence[int]
) -> dict[int, RowResult]:
    """Run a step of (row, first token, end, is last part); states are those of STATES by place."""
    bounds = np.cumsum([0, *(end - start for _, start, end, _ in parts)])
    inputs = SimpleNamespace(
        steps=[SimpleNamespace(row=row, samples=is_last) for row, _, _, is_last in parts],
        query_start=bounds,
        counts=np.diff(bounds),
        positions=np.concatenate([np.arange(start, end) for _, start, end, _ in parts]),
    )
    hidden = torch.cat([STATES[start:end] for _, start, end, _ in parts])
    made.begin(inputs)  # type: ignore[arg-type]
    known = Prompts({row: prompts.get(f"row{row}", range(10)) for row, *_ in parts})
    made.allocate(SimpleNamespace(batch=known))  # type: ignore[arg-type]
    begun: Any = SimpleNamespace(inputs=inputs)
    made.end(begun, Computed(hidden=hidden))
    return {result.row: result for result in begun.finish()}


def add(made: PoolingEnd, row: int, **params: Any) -> None:
    asked = PoolingParams(**params) if params else None
    made.add_row(SimpleNamespace(row=row, pooling=asked))  # type: ignore[arg-type]


def told(result: RowResult) -> np.ndarray:
    assert result.pooled is not None, result.fault
    return numbers(result.pooled)


def test_parts_of_a_prompt_are_pooled_together() -> None:
    made = pooling()
    for row in (1, 2):
        add(made, row)
    first = step(made, [(1, 0, 3, False), (2, 0, 5, True)], row2=range(5))
    assert first[1].pooled is None and first[1].fault is None
    assert np.allclose(told(first[2]), STATES[:5].mean(0))
    step(made, [(1, 3, 4, False)])
    assert np.allclose(told(step(made, [(1, 4, 10, True)])[1]), STATES.mean(0))


def test_a_row_that_is_taken_again_keeps_nothing_of_the_last() -> None:
    made = pooling()
    add(made, 1)
    step(made, [(1, 0, 3, False)])
    made.free_row(1)
    made.free_row(7)  # unknown ones are ignored
    add(made, 1)
    assert np.allclose(told(step(made, [(1, 3, 5, True)], row1=range(2))[1]), STATES[3:5].mean(0))


def test_the_last_token_alone_is_kept_nothing_of() -> None:
    made = pooling(Last)
    add(made, 1, task=EMBED)
    add(made, 2, task=TOKEN_EMBED)
    step(made, [(1, 0, 3, False), (2, 0, 3, False)])
    assert (len(made._rows[1].kept), len(made._rows[2].kept)) == (0, 1)
    last = step(made, [(1, 3, 4, True), (2, 3, 4, True)], row1=range(4), row2=range(4))
    assert np.allclose(told(last[1]), STATES[3])
    assert np.allclose(told(last[2]), STATES[:4])


def test_vectors_are_cut_and_scaled_as_asked() -> None:
    made = pooling(is_normalized=True, dimensions=3)
    asked: dict[int, dict[str, Any]] = {
        1: {},
        2: {"dimensions": 2},
        3: {"is_normalized": False},
        4: {"dimensions": 4, "is_normalized": False},
    }
    for row, fields in asked.items():
        add(made, row, task=EMBED, **fields)
    found = step(made, [(row, 0, 10, True) for row in asked])
    mean = STATES.mean(0).numpy()
    for row, size in ((1, 3), (2, 2)):
        wanted = mean[:size] / np.linalg.norm(mean[:size])
        assert np.allclose(told(found[row]), wanted, atol=1e-6)
    assert np.allclose(told(found[3]), mean[:3])
    assert np.allclose(told(found[4]), mean)


@pytest.mark.parametrize(
    ("activation", "of"),
    [
        ("identity", lambda x: x),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    ],
)
def test_classes(activation: str, of: Any) -> None:
    made = pooling(activation=activation)
    add(made, 1, task=CLASSIFY)
    add(made, 2, task=TOKEN_CLASSIFY)
    add(made, 3, task=CLASSIFY, is_activated=False)
    found = step(made, [(1, 0, 10, True), (2, 0, 10, True), (3, 0, 10, True)])
    plain = np.array([1.0, 2.0]) * float(STATES.mean(0)[0])
    assert np.allclose(told(found[1]), of(plain), atol=1e-6)
    assert np.allclose(told(found[2]), of(STATES[:, :1].numpy() * [1.0, 2.0]), atol=1e-6)
    assert np.allclose(told(found[3]), plain, atol=1e-6)


def test_the_classes_that_are_told() -> None:
    made = pooling(returned_token_ids=(1,))
    add(made, 1, task=CLASSIFY)
    found = told(step(made, [(1, 0, 10, True)])[1])
    assert np.allclose(found, [2 * float(STATES.mean(0)[0])])


def test_a_fault_ends_its_row_alone() -> None:
    made = pooling()
    for row in (1, 2, 3, 4):
        add(made, row)
    made.mark_failed(4, "the model's numbers are not finite.")
    saved = STATES[9].clone()
    try:
        STATES[9] = float("nan")
        found = step(
            made,
            [(1, 0, 2, True), (2, 0, 2, True), (3, 8, 10, True), (4, 0, 2, True)],
            row1=(1, 2),
            row2=(1, BROKEN_ID),
            row3=(1, 2),
            row4=(1, 2),
        )
    finally:
        STATES[9] = saved
    assert np.allclose(told(found[1]), STATES[:2].mean(0))
    fault = found[2].fault
    assert fault.startswith("the pooler failed: ValueError: a token that it cannot stand")
    assert "raised by pooler" in fault and fault.endswith(":Mean)")
    assert "not finite" in str(found[3].fault)
    assert found[4].fault == "the model's numbers are not finite."


def test_second_texts_are_marked() -> None:
    made = pooling()
    add(made, 1, task=EMBED, first_text_tokens=3)
    add(made, 2)
    step(made, [(1, 0, 5, True), (2, 0, 2, True)], row1=range(5), row2=range(2))
    assert made.second_text is not None
    assert made.second_text.tolist() == [0, 0, 0, 1, 1, 0, 0]
    step(made, [(2, 0, 2, True)], row2=range(2))
    assert made.second_text is None


def projection(folder: Path, **fields: Any) -> ProjectionSpec:
    generator = torch.Generator().manual_seed(0)
    weights = {
        "linear.weight": torch.randn(2, SIZE, generator=generator),
        "linear.bias": torch.randn(2, generator=generator),
    }
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    usual = ProjectionSpec(
        folder=str(folder), in_size=SIZE, out_size=2, has_bias=True, activation="tanh"
    )
    return msgspec.structs.replace(usual, **fields)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_layer_behind_the_pooler(tmp_path: Path, pickled: bool) -> None:
    from safetensors.torch import load_file

    spec = projection(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if pickled:
        torch.save(weights, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    made = pooling(projections=(spec,))
    add(made, 1)
    add(made, 2, task=TOKEN_EMBED)
    found = step(made, [(1, 0, 10, True), (2, 0, 10, True)])
    for row, states in ((1, STATES.mean(0)), (2, STATES)):
        wanted = torch.tanh(states @ weights["linear.weight"].T + weights["linear.bias"])
        assert np.allclose(told(found[row]), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("other.bin", b"", "cannot be read"),
        ("model.safetensors", b"nonsense", "cannot be read"),
        ("model.safetensors", None, "linear.weight"),
    ],
)
def test_a_layer_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    spec = projection(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if content is None:
        save_file({"weight": torch.zeros(2, SIZE)}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        pooling(projections=(spec,))
    assert caught.value.where == str(tmp_path)


def test_specs_cross_processes(tmp_path: Path) -> None:
    spec = PoolingSpec(
        tasks=(EMBED,),
        pooler=selection(Mean),
        token_pooler=selection(Each),
        projections=(projection(tmp_path),),
    )
    assert msgspec.json.decode(json.dumps(msgspec.to_builtins(spec)), type=PoolingSpec) == spec
