"""Adapters laid out like one before are read by its plan: the same numbers, to the bit."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.adapter import AdapterWeights, ModuleChange
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.selection import Selection
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.lora import files as adapter_files
from dovetail.runner.lora.copies import Copies
from dovetail.runner.lora.cutting import Cutting
from dovetail.runner.lora.memory import AdapterMemory
from dovetail.runner.lora.runner_adapters import RunnerAdapters
from dovetail_plugins.adapters.lora import LoraAdapter
from dovetail_plugins.load_formats._safetensors_file import WholeFile
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.written_lora import CONFIG, FILE, MODULE, write_lora

LORA = Selection(kind="adapter", name="lora", target="dovetail_plugins.adapters.lora:LoraAdapter")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("base"), "LlamaForCausalLM")
    return folder, PagedModel.load(folder, backend="torch_sdpa").module


def reader(base: tuple[Path, Any], dtype: str = "bfloat16") -> RunnerAdapters:
    spec = AdapterSpec(max_slots=1, max_rank=8, dtype=dtype, methods=(LORA,))
    run: Any = SimpleNamespace(model=load_model_facts(base[0], dtype="float32"))
    made = RunnerAdapters(spec, run, torch.device("cpu"))
    made.attach(LoadedModel(model=base[1], build_s=0, weights_s=0))
    return made


def read(adapters: RunnerAdapters, folder: Path) -> dict[str, torch.Tensor]:
    """Return what layers keep of an adapter, by layer and matrix."""
    adapters.prepare(AdapterSource(name="a", path=str(folder), key="a"))
    found = {}
    for path, slot in adapters._on_host["a"].linears.items():
        assert slot.down is not None and slot.up is not None
        found |= {f"{path}.down": slot.down, f"{path}.up": slot.up}
    return found


class DoubledAdapter(LoraAdapter):
    """Reads changes twice as large: as others derive from LoRA's own."""

    def read(self, folder: Path, config: Any) -> AdapterWeights:
        """Return the changes in memory of their own."""
        found = super().read(folder, config)
        changes = {
            name: replace(one, up=None if one.up is None else 2 * one.up)
            for name, one in found.changes.items()
        }
        return AdapterWeights(changes=changes)


def test_a_method_that_derives_and_reads_otherwise_is_asked(
    base: tuple[Path, Any], tmp_path: Path
) -> None:
    """A file whose numbers are read late has none yet for whom computes with them."""
    folder = write_lora(tmp_path / "lora")
    facts = load_model_facts(base[0], dtype="float32")
    config = json.loads((folder / "adapter_config.json").read_text())
    usual, doubled = LoraAdapter(None, facts), DoubledAdapter(None, facts)
    assert not usual.open(folder, config).content.is_read  # type: ignore[union-attr]
    wanted, found = usual.read(folder, config), doubled.open(folder, config)
    assert wanted.content.is_read and found.changes.keys() == wanted.changes.keys()  # type: ignore[union-attr]
    for name, change in found.changes.items():
        up = wanted.changes[name].up
        assert up is not None and change.up is not None and up.any()
        assert torch.equal(change.up, 2 * up)


def two_ranks(folder: Path) -> Path:
    """Have the keys' matrices rank 2, beside queries of rank 4 in the same layer."""
    tensors = load_file(folder / FILE)
    for name, tensor in tensors.items():
        if "v_proj" in name:
            tensors[name] = (tensor[:2] if "lora_A" in name else tensor[:, :2]).contiguous()
    save_file(tensors, folder / FILE)
    return folder


def must_have_plan(adapters: RunnerAdapters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an adapter is looked at tensor by tensor from now on."""

    def cut(*given: Any) -> Any:
        raise AssertionError("no plan was used")

    monkeypatch.setattr(adapters, "_cut", cut)


@pytest.mark.parametrize("is_uneven", [False, True])
def test_a_plan_copies_the_same(
    base: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_uneven: bool
) -> None:
    first, second = (write_lora(tmp_path / name, seed=i) for i, name in enumerate("ab"))
    if is_uneven:
        first, second = two_ranks(first), two_ranks(second)
    wanted = read(reader(base), second)
    planned = reader(base)
    other = {name: tensor.clone() for name, tensor in read(planned, first).items()}
    must_have_plan(planned, monkeypatch)
    found = read(planned, second)
    assert found.keys() == wanted.keys() == other.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not any(torch.equal(found[name], other[name]) for name in wanted)


def test_modules_are_known_before_the_first_adapter(
    base: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = reader(base)
    monkeypatch.setattr(adapters, "_searched", lambda *given: pytest.fail(f"looked for {given}"))
    assert read(adapters, write_lora(tmp_path / "a"))


def test_matrices_of_two_ranks_are_no_pair(base: tuple[Path, Any]) -> None:
    """A method's fault is told before anything is written where it does not belong."""
    adapters = reader(base)
    path, layer = next(iter(adapters._divisions.items()))
    copies = Copies(torch.float32, AdapterMemory())
    down, up = torch.zeros(2, layer.in_size), torch.zeros(layer.full, 3)
    change = ModuleChange(down=down, up=up)
    with pytest.raises(ConfigError, match="a second matrix of rank 3") as raised:
        Cutting(path, layer, torch.float32, copies).cut({None: change})
    assert raised.value.where == path


@pytest.mark.parametrize("piece_bytes", [1, 700, 1 << 20])
def test_a_file_is_copied_from_piece_by_piece(
    base: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """The numbers are those of the file as safetensors reads it, and it is never read whole."""
    monkeypatch.setattr(adapter_files, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(WholeFile, "read", lambda file: pytest.fail("the file was read whole"))
    adapters = reader(base, "float32")
    for name, seed in (("first", 0), ("planned", 1)):
        folder = write_lora(tmp_path / name, seed=seed)
        wanted = load_file(folder / FILE)
        found = read(adapters, folder)
        for layer in range(2):
            module = MODULE.format(layer=layer, name="q_proj")
            down, up = (wanted[f"{module}.lora_{leaf}.weight"] for leaf in "AB")
            path = next(p for p in found if f".{layer}." in p).rpartition(".")[0]
            assert torch.equal(found[f"{path}.down"][0], down * 2)  # alpha 8 of rank 4
            assert torch.equal(found[f"{path}.up"][:, :32], up.t())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_is_cut_while_it_is_read_is_named(
    base: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    adapters = reader(base)
    if is_known:
        read(adapters, write_lora(tmp_path / "good"))
    folder = write_lora(tmp_path / "cut", seed=1)
    carry_out = adapter_files.FileCopies.carry_out

    def cut(*given: Any) -> int:
        os.truncate(folder / FILE, 1500)
        return carry_out(*given)

    monkeypatch.setattr(adapter_files.FileCopies, "carry_out", cut)
    with pytest.raises(RequestError, match="cut while it was read") as raised:
        read(adapters, folder)
    assert str(folder / FILE) in str(raised.value)


def test_another_scale_is_another_layout(base: tuple[Path, Any], tmp_path: Path) -> None:
    folder, adapters = write_lora(tmp_path / "a"), reader(base)
    before = {name: tensor.clone() for name, tensor in read(adapters, folder).items()}
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"lora_alpha": 16}))
    after = read(adapters, folder)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor * 2 if name.endswith("down") else tensor)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_too_large_for_its_type_is_told(
    base: tuple[Path, Any], tmp_path: Path, is_known: bool
) -> None:
    adapters = reader(base, "float16")
    if is_known:
        read(adapters, write_lora(tmp_path / "good"))
    folder = write_lora(tmp_path / "large", seed=1)
    tensors = load_file(folder / FILE)
    next(iter(tensors.values()))[0, 0] = 1e5
    save_file(tensors, folder / FILE)
    with pytest.raises(RequestError, match="too large for the type"):
        read(adapters, folder)
