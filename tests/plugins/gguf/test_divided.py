"""Models in several GGUF files, divided as llama.cpp's gguf-split does it: any of the files names
the whole model, everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM
from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.weights_check import weight_files, weights_bytes
from dovetail.errors import ConfigError
from dovetail_plugins.tokenizers.gguf import GgufTokenizer
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import divide, write_gguf

pytest.importorskip("gguf")
FLAGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 32}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write_gguf(write_tiny_checkpoint(root / "hf", "Qwen3ForCausalLM"), root / "m-F32.gguf")
    return root / "m-F32.gguf"


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    return divide(whole, tmp_path / "parts", 3)


def _tokens(model: Path) -> tuple[int, ...]:
    from dovetail import SamplingParams

    with LLM(str(model), **FLAGS) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        (result,) = llm.generate(["the dog"], params)
    return tuple(result.outputs[0].token_ids)


def test_every_part_and_the_folder_serve_the_whole_model(whole: Path, parts: list[Path]) -> None:
    expected = _tokens(whole)
    for model in (parts[1].parent, parts[0], parts[2]):
        assert _tokens(model) == expected


def test_every_part_has_the_tokenizer(whole: Path, parts: list[Path]) -> None:
    expected = GgufTokenizer(GgufTokenizer.Options(), str(whole)).encode("the dog")
    for part in parts:
        assert GgufTokenizer(GgufTokenizer.Options(), str(part)).encode("the dog") == expected


def test_the_size_of_a_model_is_that_of_all_parts(parts: list[Path]) -> None:
    every = sum(part.stat().st_size for part in parts)
    for part in parts:
        assert weights_bytes(part) == every
        assert weight_files(part) == parts


def test_inspect_counts_all_parts(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for part in parts:
        assert main(["inspect", "--json", str(part), "--max-model-len", "64"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert [one["name"] for one in said["files"]] == [one.name for one in parts]
        assert said["warnings"] == []


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    for model in (parts[0], parts[2]):
        with pytest.raises(ConfigError, match=r"missing: m-F32-00002-of-00003\.gguf"):
            _tokens(model)


def test_a_part_under_another_name_is_refused(parts: list[Path]) -> None:
    alone = parts[0].parent.parent / "alone.gguf"
    alone.write_bytes(parts[0].read_bytes())
    with pytest.raises(ConfigError, match="part 1 of a model in 3 files"):
        _tokens(alone)
