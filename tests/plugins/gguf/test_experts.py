"""GGUF files of other times: experts one by one or fused, names, types and parts not known."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.load_formats.gguf import Gguf
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf
from support.gguf_models import loaded, logits_of, prompt, reference, transformers_model

gguf = pytest.importorskip("gguf")

Stored = tuple[str, Any, Any]
"""A tensor of a file: name, data, type."""
Change = Callable[[list[Stored]], Iterator[Stored]]


def rewritten(source: Path, target: Path, change: Change, **settings: int) -> Path:
    """Write a file with the same settings, and further ones, and the tensors that `change` makes of
    its own."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in settings.items():
        writer.add_uint16(key.replace("_", "."), value)
    own = [(t.name, np.asarray(t.data), t.tensor_type) for t in reader.tensors]
    for name, data, kind in change(own):
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def one_by_one(tensors: list[Stored]) -> Iterator[Stored]:
    """Each expert in a tensor of its own, as converters wrote it until April 2024."""
    for name, data, kind in tensors:
        if "_exps." not in name:
            yield name, data, kind
            continue
        for number, expert in enumerate(data):
            yield name.replace("_exps.", f".{number}."), expert, kind


def fused(tensors: list[Stored]) -> Iterator[Stored]:
    """Gates and ups of all experts in one tensor, as llama.cpp has them: gates first."""
    by_name = {name: (data, kind) for name, data, kind in tensors}
    for name, data, kind in tensors:
        if "ffn_up_exps" in name:
            continue
        if "ffn_gate_exps" in name:
            ups, _ = by_name[name.replace("gate", "up")]
            name, data = name.replace("gate", "gate_up"), np.concatenate([data, ups], axis=1)
        yield name, data, kind


CASES: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": {},
    "Qwen2MoeForCausalLM": {"mlp_only_layers": [], "norm_topk_prob": False},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True},
    "OlmoeForCausalLM": {},
    "Glm4MoeForCausalLM": {},
    "GptOssForCausalLM": {"swiglu_limit": 7.0},
    "GraniteMoeForCausalLM": {},
}
WIDE = {"hidden_size": 256, "intermediate_size": 256}


@pytest.mark.parametrize("change", [one_by_one, fused])
@pytest.mark.parametrize("case", CASES)
def test_experts_in_tensors_of_other_layouts(case: str, change: Change, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", case, **CASES[case])
    write_gguf(folder, tmp_path / "now.gguf")
    file, tokens = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change), prompt(30)
    (got,) = loaded(file).forward([(0, tokens)])
    right = logits_of(transformers_model(folder), tokens)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("change", [one_by_one, fused])
def test_they_may_be_quantized(change: Change, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "MixtralForCausalLM", **WIDE)
    meant = write_gguf(folder, tmp_path / "now.gguf", lambda name: "Q4_K")
    file, tokens = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change), prompt(24)
    config = read_config(file)
    assert config is not None
    assert "Q4_K" in config["quantization_config"]["types"].values()
    (got,) = loaded(file).forward([(0, tokens)])
    right = reference(folder, meant, tokens, tmp_path / "meant")
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())


@pytest.mark.parametrize("change", [one_by_one, fused])
def test_headers_are_those_of_the_tensors(change: Change, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "MixtralForCausalLM")
    write_gguf(folder, tmp_path / "now.gguf")
    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change)
    reader, checkpoint = Gguf(Gguf.Options()), Checkpoint(path=str(file))
    headers = {one.name: one.shape for one in reader.headers(checkpoint)}
    assert headers == {name: tuple(t.shape) for name, t in reader.tensors(checkpoint)}


def test_experts_of_several_types_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "MixtralForCausalLM", **WIDE)
    write_gguf(folder, tmp_path / "now.gguf", lambda name: "Q8_0")

    def change(tensors: list[Stored]) -> Iterator[Stored]:
        for name, data, kind in one_by_one(tensors):
            if name == "blk.1.ffn_down.2.weight":
                data, kind = gguf.quants.dequantize(data, kind), gguf.GGMLQuantizationType.F32
            yield name, data, kind

    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change)
    with pytest.raises(ConfigError, match=r"blk\.1\.ffn_down\.2\.weight is F32.*Q8_0"):
        read_config(file)


@pytest.mark.parametrize("change", [one_by_one, fused])
def test_as_many_experts_as_the_settings_say(change: Change, tmp_path: Path) -> None:
    """A model of the settings' size would be built before any tensor is found to be missing."""
    folder = write_tiny_checkpoint(tmp_path / "hf", "MixtralForCausalLM")
    write_gguf(folder, tmp_path / "now.gguf")
    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change)
    content, key = file.read_bytes(), b"llama.expert_count"
    place = content.index(key) + len(key) + 4
    file.write_bytes(content[:place] + (99).to_bytes(4, "little") + content[place + 4 :])
    with pytest.raises(ConfigError, match="settings say 99"):
        read_config(file)


def test_names_that_are_not_known_do_not_blame_the_file(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "now.gguf")

    def change(tensors: list[Stored]) -> Iterator[Stored]:
        for name, data, kind in tensors:
            yield name.replace("attn_output", "attn_out"), data, kind

    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change)
    with pytest.raises(ConfigError, match=r'known for.*"llama": blk\.0\.attn_out') as caught:
        loaded(file)
    assert "current llama.cpp" in str(caught.value.fix)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM", **WIDE)
    write_gguf(folder, tmp_path / "now.gguf", lambda name: "Q8_0")

    def change(tensors: list[Stored]) -> Iterator[Stored]:
        kind = gguf.GGMLQuantizationType.Q1_0
        for name, data, other in tensors:
            if "ffn_up" in name:
                rows = gguf.quants.dequantize(data, other).shape[0]
                yield name, np.zeros((rows, 2 * 18), dtype=np.uint8), kind
            else:
                yield name, data, other

    file = rewritten(tmp_path / "now.gguf", tmp_path / "m.gguf", change)
    with pytest.raises(ConfigError, match=r"type Q1_0, which is not read") as caught:
        load_model_facts(file)
    assert "not a valid" not in str(caught.value)
    assert "Q4_K_M" in str(caught.value)


@pytest.mark.parametrize("name", ["second.gguf", "m-00002-of-00002.gguf"])
def test_a_second_part_alone_says_so(name: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    write_gguf(folder, tmp_path / "now.gguf")
    part = rewritten(
        tmp_path / "now.gguf", tmp_path / name, lambda own: iter(own[9:]), split_no=1, split_count=2
    )
    with pytest.raises(ConfigError, match=r"part 2 of a model in 2 files") as caught:
        load_model_facts(part)
    assert "first part" in str(caught.value.fix)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(part, alone / name)
    with pytest.raises(ConfigError, match=r"part 2 of a model in 2 files"):
        load_model_facts(alone)
