"""Heads of GGUF files: what the gguf package writes and reads, and files that lie."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.gguf.families.parts import ends
from dovetail_plugins.gguf.reading.file import (
    GgufModel,
    find_file,
    forget_head,
    read_head,
    read_model,
)
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.gguf.vocabulary.read import read_tokenizer
from dovetail_plugins.load_formats.gguf import Gguf
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf

gguf = pytest.importorskip("gguf")

NUM_MUTATED = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hf")
    return write_tiny_checkpoint(root, "LlamaForCausalLM", intermediate_size=64)


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(folder, path, lambda name: "Q8_0", settings={"some.numbers": [1, -2, 3]})
    return path


def everything(path: Path) -> dict[str, Any]:
    """Return all tensors of a file, after all else that is read of it."""
    read_config(path)
    read_tokenizer(path)
    return {n: t.clone() for n, t in Gguf(Gguf.Options()).tensors(Checkpoint(path=str(path)))}


def test_settings_and_tensors_are_those_of_the_package(file: Path) -> None:
    head, reader = read_head(file), gguf.GGUFReader(file)
    named = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    assert set(head.settings) == set(named)
    for name, value in head.settings.items():
        assert value == named[name].contents(), name
    raw = file.read_bytes()
    assert len(head.extents) == len(reader.tensors)
    for ours, right in zip(head.extents, reader.tensors, strict=True):
        assert (ours.name, ours.type.name) == (right.name, right.tensor_type.name)
        assert ours.shape == tuple(reversed(right.shape.tolist()))
        assert raw[ours.start : ours.start + ours.num_bytes] == right.data.tobytes()


def test_a_head_is_read_once_while_the_file_stays_as_it_is(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file.read_bytes())
    first = read_head(path)
    assert read_head(path) is first
    content = bytearray(path.read_bytes())
    place = content.index(b"some.numbers")
    content[place : place + 4] = b"more"
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert "more.numbers" in read_head(path).settings
    forget_head()
    assert read_head(path) is not first


def test_mutated_files_are_read_or_refused(file: Path, tmp_path: Path) -> None:
    """Bytes changed or cut off anywhere: a ConfigError that names the file, or tensors."""
    whole, chance = file.read_bytes(), random.Random(0)
    head_bytes = min(extent.start for extent in read_head(file).extents)
    path, num_refused = tmp_path / "mutated.gguf", 0
    for number in range(NUM_MUTATED):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4, 32))):
            place = chance.randrange(head_bytes if number % 4 else len(content))
            content[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if number % 5 == 0:
            del content[chance.randrange(len(content)) :]
        if number % 7 == 0:
            place = chance.randrange(head_bytes)
            content[place : place + 8] = struct.pack("<Q", chance.choice((2**63, 2**40, 2**64 - 1)))
        path.write_bytes(content)
        try:
            everything(path)
        except ConfigError as error:
            num_refused += 1
            assert "mutated.gguf" in str(error)
    assert num_refused > NUM_MUTATED // 3


def described(name: str, shape: list[int], code: int, offset: int) -> bytes:
    raw = name.encode()
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(raw)) + raw + axes + struct.pack("<IQ", code, offset)


def head_of(num_tensors: int, num_settings: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_settings) + rest


ONE = described("t", [32], 0, 0)
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "are left"),
    "another format": (b"PK\x03\x04" + bytes(60), "starts with"),
    "version": (head_of(0, 0, version=1), "version 1"),
    "byte order": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensors": (head_of(2**62, 0), "cannot be inside"),
    "settings": (head_of(0, 2**62), "cannot be inside"),
    "long text": (head_of(0, 1, struct.pack("<Q", 2**63) + bytes(64)), "text of"),
    "array": (
        head_of(0, 1, struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**60) + bytes(9)),
        "cannot be inside",
    ),
    "deep": (
        head_of(0, 1, struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
                + struct.pack("<IQ", 9, 1) * 40 + bytes(99)),
        "too deep",
    ),
    "kind": (
        head_of(0, 1, struct.pack("<Q", 1) + b"a" + struct.pack("<I", 77) + bytes(9)),
        "kind 77",
    ),
    "twice": (
        head_of(0, 2, (struct.pack("<Q", 1) + b"a" + struct.pack("<IB", 0, 5)) * 2 + bytes(9)),
        "comes twice",
    ),
    "type": (head_of(1, 0, described("t", [32], 99, 0) + bytes(256)), "type 99"),
    "axes": (head_of(1, 0, described("t", [1] * 9, 0, 0) + bytes(256)), "9 axes"),
    "half a block": (head_of(1, 0, described("t", [33], 2, 0) + bytes(256)), "shape"),
    "overflow": (head_of(1, 0, described("t", [2**63, 2**63], 0, 0) + bytes(256)), "ends at byte"),
    "beyond": (head_of(1, 0, described("t", [32], 0, 2**50) + bytes(256)), "ends at byte"),
    "unaligned": (head_of(1, 0, described("t", [32], 0, 3) + bytes(256)), "not aligned"),
    "overlap": (head_of(2, 0, ONE + described("u", [32], 0, 64) + bytes(512)), "overlaps"),
    "one name": (head_of(2, 0, ONE + described("t", [32], 0, 128) + bytes(512)), "one name"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_lies_are_refused(case: str, tmp_path: Path) -> None:
    content, told = LIES[case]
    path = tmp_path / "liar.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        read_head(path)
    assert "liar.gguf" in str(caught.value)


def test_divided_files(folder: Path, tmp_path: Path) -> None:
    """Any of the files names the model; one that is missing is told."""
    whole = tmp_path / "whole.gguf"
    write_gguf(folder, whole)
    reader = gguf.GGUFReader(whole)
    halves = reader.tensors[:9], reader.tensors[9:]
    paths = [tmp_path / f"m-{n:05}-of-00002.gguf" for n in (1, 2)]
    for number, (path, tensors) in enumerate(zip(paths, halves, strict=True)):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, np.asarray(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    names = {extent.name for extent in read_model(whole).extents}
    for path in paths:
        assert {extent.name for extent in read_model(path).extents} == names
    whole.unlink()
    assert find_file(tmp_path) == paths[0]
    paths[1].unlink()
    with pytest.raises(ConfigError, match="m-00002-of-00002"):
        read_model(paths[0])


def test_a_folder_of_several_models_must_be_narrowed(file: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"a\.gguf, b\.gguf"):
        find_file(tmp_path)
    assert find_file(tmp_path, ignored=("b.*",)) == tmp_path / "a.gguf"
    assert find_file(tmp_path / "b.gguf") == tmp_path / "b.gguf"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rwkv7", '"rwkv7".*not served from safetensors'), ("nobodys", '"nobodys".*llama.*qwen3')],
)
def test_architectures_that_are_not_read_are_named(name: str, reason: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=reason):
        read_config(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("setting", "told"),
    [("block_count", "llama.block_count"), ("context_length", "llama.context_length")],
)
def test_settings_that_are_missing_are_named(
    file: Path, tmp_path: Path, setting: str, told: str
) -> None:
    broken = file.read_bytes().replace(setting.encode(), setting[::-1].encode())
    (tmp_path / "m.gguf").write_bytes(broken)
    with pytest.raises(ConfigError, match=told):
        read_config(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("texts", "ending"),
    [
        (("<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"), [0, 1, 3]),
        (("<|call|>", "<|end|>", "a"), [1]),
    ],
    ids=["harmony", "phi"],
)
def test_the_end_of_one_message_of_several_ends_no_answer(
    texts: tuple[str, ...], ending: list[int]
) -> None:
    """Of gpt-oss <|return|> and <|call|> end an answer, <|end|> only its thoughts."""
    settings = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": [3] * len(texts),
    }
    model = GgufModel(path=Path("m.gguf"), settings=settings, extents=())
    assert ends(Settings(model))["eos_token_id"] == ending
