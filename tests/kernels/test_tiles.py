"""Tiles: they fit the device's shared memory, and a table that was measured goes before the rule.

Nothing is timed here: the timer is a double. That tiles do not spill is `test_gpu_compile.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dovetail_kernels.gemm.tiles import Tiles, Work, key_of, tiles
from dovetail_kernels.gpu import table, tune
from dovetail_kernels.gpu.facts import KNOWN, facts_of, standing_for
from dovetail_kernels.paged_attention.tiles import decode_tile, prefill_tile

CPU = torch.device("cpu")
WORK = Work(kind="int4", dot_type="bf16", has_own_sums=False, word_bytes=64, input_bytes=256)
H100 = KNOWN[90].name


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the table be one with an entry for each op."""
    entries = {"int4 bf16 16": {"outputs": 32, "stages": 5}}
    attention = {"prefill bfloat16 128": {"keys": 128}}
    made = {H100: {"gemm": entries, "paged_attention": attention}}
    monkeypatch.setattr(table, "table", lambda: made)
    yield


@pytest.mark.parametrize("capability", KNOWN)
@pytest.mark.parametrize("rows", [1, 20, 64, 4096])
@pytest.mark.parametrize("input_bytes", [64, 256, 512])
def test_stages_fit_shared_memory(capability: int, rows: int, input_bytes: int) -> None:
    work = Work(kind="int4", dot_type="bf16", has_own_sums=False, word_bytes=64,
                input_bytes=input_bytes)  # fmt: skip
    with standing_for(capability):
        tile = tiles(rows, work, CPU)
        needed = tile.stages * (tile.outputs * 64 + tile.rows * input_bytes)
        assert needed <= facts_of(CPU).shared_bytes
        assert tile.stages >= 2


@pytest.mark.usefixtures("written")
def test_the_table_goes_before_the_rule_on_its_device_only() -> None:
    assert (tiles(3, WORK, CPU).outputs, tiles(3, WORK, CPU).stages) == (32, 5)
    assert tiles(30, WORK, CPU).outputs == 64
    assert prefill_tile(torch.bfloat16, torch.bfloat16, 128, 4, CPU).keys == 128
    assert decode_tile(torch.bfloat16, 128, 4, CPU).keys == 64
    with standing_for(89):
        assert tiles(3, WORK, CPU).outputs == 64


def test_the_table_that_is_checked_in_names_tiles() -> None:
    known = set(Tiles.__dataclass_fields__) - {"parts", "rows"}
    for ops in table.table().values():
        assert set(ops) <= set(tune.OPS)
        assert all(set(numbers) <= known for numbers in ops.get("gemm", {}).values())


def test_the_fastest_tile_that_fits_is_chosen() -> None:
    pytest.importorskip("triton")
    from dovetail_kernels.gemm import tiles as module

    tried: list[int] = []
    choice = tune.Choice(
        key=key_of(1, WORK),
        run=lambda: tried.append(tiles(1, WORK, CPU).outputs),
        candidates=[{"outputs": 32}, {"outputs": 128}, {"outputs": 256}],
    )
    times = {64: 1.0, 32: 0.99, 128: 0.5, 256: 0.7}

    def time(call: object) -> float:
        choice.run()
        return times[tried[-1]]

    assert tune.fastest(module.OP_NAME, choice, time) == {"outputs": 128}
    assert tried == [64, 32, 128, 256]
    times[128] = times[256] = 0.98
    assert tune.fastest(module.OP_NAME, choice, time) is None


def test_entries_are_written_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps({H100: {"gemm": {"a": {"warps": 8}}, "other": {}}}))
    table.write_entries(H100, "gemm", {"b": {"warps": 4}}, path)
    table.write_entries("8.9 x 128", "gemm", {}, path)
    assert json.loads(path.read_text()) == {
        H100: {"gemm": {"b": {"warps": 4}}, "other": {}},
        "8.9 x 128": {"gemm": {}},
    }


def test_nothing_is_tuned_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    from dovetail_kernels.__main__ import main

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["tune", "--op", "gemm"]) == 1
    assert capsys.readouterr().out.startswith("tune: ")
