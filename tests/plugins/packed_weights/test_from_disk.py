"""A model larger than memory runs from its entry: whatever is resident, its logits are the same
bits, and a file that changes meanwhile is an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from plugins.packed_weights.test_faults import KEY, products

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import DovetailError
from dovetail.runner.load import offloaded_memory
from dovetail.runner.load.loader import load_model
from dovetail_kernels.cpu.library import library
from dovetail_kernels.cpu.program import NotRecordable, Pool, record
from dovetail_kernels.gemm.matrix import Matrix
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.packed_weights import entry_file, from_disk, loading, residency
from dovetail_plugins.packed_weights.folder import SUFFIX, cache_folder, entries, note_use
from dovetail_plugins.packed_weights.from_disk import FromDisk
from dovetail_plugins.packed_weights.residency import Residency, WeightsChanged, reason_against
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.models import write_tiny_checkpoint

pytestmark = [
    pytest.mark.skipif(library() is None, reason="nothing is packed without the library"),
    pytest.mark.skipif(reason_against() is not None, reason=str(reason_against())),
]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "head_dim": 32}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SIZES,
    "Qwen3MoeForCausalLM": SIZES | EXPERTS,
    "MixtralForCausalLM": SIZES,
    "Gemma2ForCausalLM": SIZES,
}
PROMPTS = [[3, 9, 27, 14, 5], [40, 2], [7, 7, 8, 1, 30, 31, 32]]


class Machine:
    """What the model sees of the machine: the bytes that are free for weights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes = 0
        self.followers: list[FromDisk] = []
        monkeypatch.setattr(loading, "available_bytes", lambda: 1)
        monkeypatch.setattr(from_disk, "available_bytes", self._available)
        monkeypatch.setattr(from_disk, "_margin_bytes", lambda: 0)
        attach = FromDisk.attach

        def noted(follower: FromDisk, model: Any) -> None:
            self.followers.append(follower)
            attach(follower, model)

        monkeypatch.setattr(FromDisk, "attach", noted)

    def _available(self) -> int:
        return self.free_bytes - sum(one._resident_bytes for one in self.followers[-1:])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "LEAST_BYTES", 1 << 40)
    return Machine(monkeypatch)


def model_of(path: Path, **fields: Any) -> PagedModel:
    config = Config.from_fields({"model": str(path), "load_format": "auto", **fields})
    return PagedModel(load_model(resolve(config).run, torch.device("cpu")).module)


def logits_of(model: PagedModel) -> torch.Tensor:
    rows = PagedModel(model.module)
    parts = [rows.forward([(row, prompt)])[0] for row, prompt in enumerate(PROMPTS * 2)]
    return torch.cat([torch.as_tensor(part) for part in parts])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_are_the_same_whatever_is_resident(
    family: str, tmp_path: Path, machine: Machine
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", family, **FAMILIES[family])
    expected = logits_of(model_of(path, weight_cache=False))
    first, second = model_of(path), model_of(path)  # writes the entry, and maps it
    assert len(machine.followers) == 2 and len(entries(cache_folder())) == 1
    all_bytes = sum(unit.num_bytes for unit in machine.followers[1]._units)
    assert all_bytes > 100_000
    machine.free_bytes = all_bytes
    del machine.followers[1]
    assert torch.equal(logits_of(first), expected)
    third = model_of(path)
    for share in (0.0, 0.03, 0.2, 0.5, 0.9, 1.5, 0.1, 0.0):
        machine.free_bytes = int(share * all_bytes)
        follower = machine.followers[-1]
        assert torch.equal(logits_of(third), expected)
        assert follower._resident_bytes <= machine.free_bytes
    assert machine.followers[-1].counts.read_bytes > all_bytes
    assert torch.equal(logits_of(second), expected)


def test_experts_that_are_chosen_often_stay(tmp_path: Path, machine: Machine) -> None:
    shape = FAMILIES["Qwen3MoeForCausalLM"]
    path = write_tiny_checkpoint(tmp_path / "model", "Qwen3MoeForCausalLM", **shape)
    model = model_of(path)
    follower = machine.followers[-1]
    experts = next(iter(follower._experts))
    units = follower._experts[experts]
    machine.free_bytes = follower._dense_bytes * 2 + 4 * units[0].num_bytes
    logits_of(model)
    follower._scores[:] = 0
    x, ones = torch.zeros(1, 128), torch.ones(1, 1)
    follower._bound_bytes = follower._resident_bytes = follower._staying_bytes + 1
    for unit in follower._units:
        if unit.is_resident and not unit.stays:
            for place in unit.places:
                follower._residency.release(place)
            unit.is_resident = follower._may_go[unit.number] = False
    follower._bound_bytes = follower._resident_bytes + 3 * units[0].num_bytes
    for number in (4, 4, 4, 5, 5, 1, 2, 3, 4, 5, 6, 7):
        experts(x, ones, torch.tensor([[number]]))
    resident = {number for number, unit in enumerate(units) if unit.is_resident}
    assert {4, 5} < resident and len(resident) == 3


def test_steps_are_not_recorded(tmp_path: Path, machine: Machine) -> None:
    model_of(write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", **SIZES))
    follower = machine.followers[-1]

    def begin() -> torch.Tensor:
        follower._begin_pass(torch.nn.Identity(), ())
        return torch.empty(1)

    with pytest.raises(NotRecordable, match="read from disk"):
        record(begin, Pool())


def _one_byte(path: Path, times: os.stat_result) -> None:
    with path.open("r+b") as file:
        for start in range(0, times.st_size - 4096, 4096):
            file.seek(start + 17)
            file.write(b"\xa5")


def _cut(path: Path, times: os.stat_result) -> None:
    os.truncate(path, 4096)


def _hidden(path: Path, times: os.stat_result) -> None:
    _one_byte(path, times)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("fault", [_one_byte, _cut])
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_a_file_that_changes_is_an_error(
    fault: Any, share: float, tmp_path: Path, machine: Machine
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", **SIZES)
    model = model_of(path)
    machine.free_bytes = int(share * machine.followers[-1]._dense_bytes)
    logits_of(model)
    entry = entries(cache_folder())[0].path
    fault(entry, entry.stat())
    with pytest.raises(WeightsChanged, match="were changed while") as caught:
        logits_of(model)
    assert caught.value.where == str(entry) and "start again" in str(caught.value)
    assert not entry.exists()


def test_a_change_that_leaves_no_trace_is_found_by_its_checksum(
    tmp_path: Path, machine: Machine
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", **SIZES)
    model = model_of(path)
    machine.free_bytes = 0
    logits_of(model)
    entry = entries(cache_folder())[0].path
    _hidden(entry, entry.stat())
    machine.free_bytes = machine.followers[-1]._dense_bytes
    with pytest.raises(WeightsChanged, match="damaged"):
        logits_of(model)
    assert entries(cache_folder()) == []  # the next start packs it anew


def test_another_start_changes_nothing(tmp_path: Path, machine: Machine) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "LlamaForCausalLM", **SIZES)
    model = model_of(path)
    expected = logits_of(model)
    note_use(entries(cache_folder())[0].path)
    model_of(path)
    assert torch.equal(logits_of(model), expected)


def test_what_the_system_has_no_memory_for_stays_mapped(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "MixtralForCausalLM", **SIZES)
    expected = logits_of(model_of(path, weight_cache=False))
    model = model_of(path)
    machine.free_bytes = 1 << 30
    move, count = residency._move, iter(range(1000))

    def sometimes(*args: Any) -> None:
        if next(count) % 2:
            raise MemoryError("too many mappings")
        move(*args)

    monkeypatch.setattr(residency, "_move", sometimes)
    assert torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_place_is_read_and_released(
    is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{KEY}{SUFFIX}"
    weight = Weight(format="float32", values=torch.randn(40, 64))
    matrix = Matrix(weight, device="cpu", dtype=torch.float32)
    entry_file.write(
        path, KEY, "a model", {"a#0": [matrix, matrix], "b#0": [matrix], "b#1": [matrix]}
    )
    entry = entry_file.mapped_entry(path, KEY)
    if not is_direct:
        monkeypatch.setattr(residency, "_direct", lambda _: None)
    file = Residency(entry.descriptor, str(path))
    expected = products(entry.layers)
    places = [one for name in entry.layers for one in entry.places(name) if one.has_own_pages]
    assert len(places) == 4
    for place in places:
        file.read(place)
    assert torch.equal(products(entry.layers), expected)
    for place in places:
        file.release(place)
    assert torch.equal(products(entry.layers), expected)
    file.close()
    file.close()


def test_an_engine_whose_weights_change_says_so(tmp_path: Path, machine: Machine) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "Qwen3MoeForCausalLM", **SIZES, **EXPERTS)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    fields: dict[str, Any] = {"model": str(path), "skip_tokenizer_init": True, "max_model_len": 64}
    with LLM(**fields, weight_cache=False) as llm:
        expected = [one.outputs[0].token_ids for one in llm.generate(prompts, greedy)]
    machine.free_bytes = 0
    with LLM(**fields) as llm:
        follower = machine.followers[-1]
        machine.free_bytes = 2 * follower._dense_bytes + 1_500_000
        found = [one.outputs[0].token_ids for one in llm.generate(prompts, greedy)]
        assert found == expected
        assert 0 < follower.counts.resident < follower.counts.chosen
        entry = entries(cache_folder())[0].path
        _cut(entry, entry.stat())
        with pytest.raises(DovetailError, match="were changed while") as caught:
            llm.generate(prompts, greedy)
        assert str(entry) in str(caught.value)


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_sleeps_without_its_file(
    level: int, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "MixtralForCausalLM", **SIZES)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompt = {"prompt_token_ids": PROMPTS[0]}
    fields: dict[str, Any] = {"model": str(path), "skip_tokenizer_init": True, "max_model_len": 64}
    with LLM(**fields, enable_sleep_mode=True) as llm:
        machine.free_bytes = 1_000_000
        expected = llm.generate([prompt], greedy)[0].outputs[0].token_ids
        file_bytes = entries(cache_folder())[0].num_bytes
        with monkeypatch.context() as patch:
            written = offloaded_memory.OffloadedPages._written

            def small(pages: Any) -> Any:
                assert sum(size for _, size in pages._spans) < file_bytes / 4
                return written(pages)

            patch.setattr(offloaded_memory.OffloadedPages, "_written", small)
            llm.sleep(level)
        llm.wake_up()
        assert llm.generate([prompt], greedy)[0].outputs[0].token_ids == expected
