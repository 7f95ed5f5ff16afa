"""Formats read what was written; damage is told by file and cause, before anything is mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail.registry.options import options_for
from dovetail_plugins.load_formats.auto import Auto, AutoOptions
from dovetail_plugins.load_formats.dummy import Dummy
from dovetail_plugins.load_formats.hf import Hf
from dovetail_plugins.load_formats.npcache import Npcache
from dovetail_plugins.load_formats.pt import Pt, PtOptions
from dovetail_plugins.load_formats.safetensors import Safetensors, SafetensorsOptions

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor([True, False, True]),
    "odd": torch.arange(3, dtype=torch.int8),
    "d": torch.arange(4, dtype=torch.float16),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(7, dtype=torch.int64),
}


def read(load_format: Any, folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    pairs = load_format.tensors(Checkpoint(path=str(folder), **changes))
    return {name: tensor.clone() for name, tensor in pairs}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("reading", ["lazy", "eager"])
def test_both_readings_give_the_same(tmp_path: Path, reading: str) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_same(read(Safetensors(SafetensorsOptions(reading=reading)), tmp_path), TENSORS)


def test_an_eager_file_is_in_memory_before_its_first_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    checkpoint = Checkpoint(path=str(tmp_path))
    tensors = Safetensors(SafetensorsOptions(reading="eager")).tensors(checkpoint)
    found = dict([next(tensors)])
    path.write_bytes(bytes(path.stat().st_size))
    assert_same(found | dict(tensors), TENSORS)


def test_eager_is_refused_where_no_file_is_of_that_format(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match='eager" needs safetensors files'):
        read(Auto(AutoOptions(reading="eager")), tmp_path)


def test_an_unknown_reading_is_refused() -> None:
    with pytest.raises(ConfigError, match="slowly"):
        options_for(Safetensors, {"reading": "slowly"})


def write_sharded(folder: Path) -> None:
    names = list(TENSORS)
    files = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, held in files.items():
        save_file({n: TENSORS[n] for n in held}, folder / file)
    index = {"weight_map": {n: file for file, held in files.items() for n in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_follow_the_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    save_file({"stray": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    assert_same(read(Auto(AutoOptions()), tmp_path), TENSORS)


def test_hf_takes_no_files_of_other_publishers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\*\.safetensors.*\*\.bin"):
        read(Hf(AutoOptions()), tmp_path)
    save_file(TENSORS, tmp_path / "consolidated.safetensors")
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(ConfigError, match="not files of a Hugging Face checkpoint"):
        read(Hf(AutoOptions()), tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    assert_same(read(Hf(AutoOptions()), tmp_path), TENSORS)
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_same(read(Hf(AutoOptions()), tmp_path), TENSORS)


def test_an_index_may_not_leave_the_folder(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    inner = tmp_path / "inner"
    inner.mkdir()
    index = {"weight_map": {"a": "../model.safetensors"}}
    (inner / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="outside the folder"):
        read(Safetensors(SafetensorsOptions()), inner)


def test_the_same_tensor_twice_is_refused(tmp_path: Path) -> None:
    for name in ("x.safetensors", "y.safetensors"):
        save_file({"a": TENSORS["a"]}, tmp_path / name)
    with pytest.raises(ConfigError, match=r"also in x\.safetensors"):
        read(Safetensors(SafetensorsOptions()), tmp_path)


def header(entries: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        ((2**60).to_bytes(8, "little") + b"{}", "header"),
        (header({"a": GOOD}, b"\0" * 7), "cut short"),
        (header({"a": GOOD}, b"\0" * 9), "1 bytes follow"),
        (header({"a": {**GOOD, "shape": [3]}}, b"\0" * 8), "shape"),
        (header({"a": {**GOOD, "shape": [-2]}}, b"\0" * 8), "valid shape"),
        (header({"a": {**GOOD, "dtype": "F99"}}, b"\0" * 8), "F99"),
        (header({"a": GOOD, "b": GOOD}, b"\0" * 8), "overlaps"),
        ((5).to_bytes(8, "little") + b"{abc}", "not valid JSON"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
    ],
)
@pytest.mark.parametrize("reading", ["lazy", "eager"])
def test_damage_is_told(tmp_path: Path, reading: str, content: bytes, told: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=told) as raised:
        read(Safetensors(SafetensorsOptions(reading=reading)), tmp_path)
    assert "model.safetensors" in str(raised.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_pt_reads_both_layouts_and_skips_other_files(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, file, _use_new_zipfile_serialization=zipped)
    (tmp_path / "training_args.bin").write_bytes(b"not weights")
    assert_same(read(Auto(AutoOptions()), tmp_path), TENSORS)


def save_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch, *, zipped: bool = True) -> None:
    """Write a file whose tensors say that they were on cuda:1."""
    with monkeypatch.context() as patch:
        patch.setattr("torch.serialization.location_tag", lambda storage: "cuda:1")
        file = folder / "pytorch_model.bin"
        torch.save(TENSORS, file, _use_new_zipfile_serialization=zipped)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", ["pt", "npcache", "auto"])
def test_pt_reads_onto_the_device_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, zipped: bool
) -> None:
    save_elsewhere(tmp_path, monkeypatch, zipped=zipped)
    format_class: Any = {"pt": Pt, "npcache": Npcache, "auto": Auto}[kind]

    def onto(places: dict[str, str]) -> dict[str, torch.Tensor]:
        return read(format_class(options_for(format_class, {"map_location": places})), tmp_path)

    for places, told in (
        ({"cuda:0": "cpu"}, 'tensors of "cuda:1" cannot be read onto "cuda:1"'),
        ({"*": "meta"}, "meta keeps no numbers"),
        ({"cuda:1": "abacus", "*": "cpu"}, 'onto "abacus"'),
    ):
        with pytest.raises(ConfigError, match=told) as raised:
            onto(places)
        assert raised.value.where == "--pt-load-map-location"
        assert [file.name for file in tmp_path.iterdir()] == ["pytorch_model.bin"]
    for places in ({"cuda:1": "cpu"}, {"cuda:1": "cpu", "*": "meta"}, {"*": "cpu"}):
        assert_same(onto(places), TENSORS)


def test_a_device_asked_for_in_vain_is_told(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="leave --pt-load-map-location out"):
        read(Auto(AutoOptions(map_location={"*": "cuda:0"})), tmp_path)


def test_pt_holds_tensors_only(tmp_path: Path) -> None:
    torch.save({"a": TENSORS["a"], "epoch": 3}, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match='"epoch" is a int'):
        read(Pt(PtOptions()), tmp_path)
    torch.save([TENSORS["a"]], tmp_path / "model.pt")
    with pytest.raises(ConfigError, match="holds a list"):
        read(Pt(PtOptions()), tmp_path)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.empty(3, device="meta"), "without plain numbers .meta"),
        (torch.eye(3).to_sparse(), "without plain numbers .torch.sparse.FloatTensor"),
        (torch.ones(1).expand(2**30, 2**30), "of 4611686018427387904 bytes, for which .* holds 4"),
    ],
    ids=["meta", "sparse", "repeated"],
)
def test_pt_refuses_tensors_that_the_file_does_not_hold(
    tmp_path: Path, tensor: torch.Tensor, told: str
) -> None:
    torch.save({"a": tensor}, tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=told):
        read(Pt(PtOptions()), tmp_path)


def test_npcache_is_rebuilt_when_its_source_changes(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    assert_same(read(Npcache(PtOptions()), tmp_path), TENSORS)
    manifest = tmp_path / "np" / "manifest.json"
    written_ns = manifest.stat().st_mtime_ns
    assert_same(read(Npcache(PtOptions()), tmp_path), TENSORS)
    assert manifest.stat().st_mtime_ns == written_ns
    torch.save({"a": TENSORS["a"] + 1}, tmp_path / "pytorch_model.bin")
    assert_same(read(Npcache(PtOptions()), tmp_path), {"a": TENSORS["a"] + 1})


def test_npcache_may_lie_elsewhere(tmp_path: Path) -> None:
    source, cache = tmp_path / "model", tmp_path / "cache"
    source.mkdir()
    torch.save(TENSORS, source / "pytorch_model.bin")
    assert_same(read(Npcache(PtOptions()), source, download_dir=str(cache)), TENSORS)
    assert not (source / "np").exists()
    assert (cache / "np-model" / "manifest.json").is_file()


def test_auto_says_why_nothing_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\*\.safetensors.*\*\.bin"):
        read(Auto(AutoOptions()), tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        read(Auto(AutoOptions()), tmp_path / "nowhere")


def test_progress_counts_bytes(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    seen: list[tuple[int, int]] = []
    read(
        Safetensors(SafetensorsOptions()),
        tmp_path,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(t.nbytes for t in TENSORS.values())
    assert seen[-1] == (total, total)


def test_dummy_depends_on_seed_and_name_alone() -> None:
    shapes = {"w": ((40, 50), "float32"), "norm.weight": ((64,), "bfloat16"), "i": ((9,), "int32")}
    one = read(Dummy(None), Path("nowhere"), shapes=shapes, seed=1)
    part = read(Dummy(None), Path("nowhere"), shapes={"w": shapes["w"]}, seed=1)
    assert torch.equal(one["w"], part["w"])
    assert not torch.equal(one["w"], read(Dummy(None), Path(), shapes=shapes, seed=2)["w"])
    assert 0.01 < one["w"].std() < 0.03
    assert abs(one["norm.weight"].float().mean() - 1) < 0.02
    assert one["i"].dtype == torch.int32
