"""A GGUF file and nothing else: settings, weights, tokenizer and chat template come from it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dovetail import LLM
from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail_plugins.inspect.listing import listed
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import found_logprobs, wanted_logprobs
from support.gguf_files import write_gguf
from support.model_stores import add_to_ollama

pytest.importorskip("gguf")

TYPES = {"attn_v": "Q6_K", "ffn_down": "Q5_K", "output": "Q8_0", "token_embd": "Q4_0"}
"""The types of a file as llama.cpp mixes them; Q4_K where nothing is said."""
PROMPTS = [list(range(3, 30)), [40, 41, 42]]
FLOAT = {"quantization": {"activations": "float"}}
SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a file, and a Hugging Face folder with the weights that the file means."""
    root = tmp_path_factory.mktemp("engine")
    source = write_tiny_checkpoint(root / "source", "Qwen3ForCausalLM", **SIZES)
    file = root / "alone" / "model.gguf"
    file.parent.mkdir()
    meant = write_gguf(source, file, lambda name: TYPES.get(name.split(".")[-2], "Q4_K"))
    shutil.copytree(source, root / "meant", ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in meant.items()}
    save_file(tensors, root / "meant" / "model.safetensors", metadata={"format": "pt"})
    return file, root / "meant"


def engine(model: Path | str, **flags: Any) -> LLM:
    return LLM(
        model=str(model),
        num_gpu_blocks_override=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
        kv_cache_dtype="float32",
        **flags,
    )


@pytest.mark.parametrize("names_folder", [False, True])
def test_logits_are_those_of_the_packages_weights(
    written: tuple[Path, Path], names_folder: bool
) -> None:
    import transformers

    file, folder = written
    with engine(file.parent if names_folder else file, plugin_options=FLOAT) as llm:
        found = found_logprobs(llm, PROMPTS)
        run = llm.spec.run
        assert (run.quantization.name, run.model.architecture) == ("gguf", "Qwen3ForCausalLM")
        assert llm.spec.tokenizer.name == "gguf"
        (answer,) = llm.generate(["the dog"], use_tqdm=False)
        assert answer.outputs[0].text is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    wanted, spread = wanted_logprobs(model, PROMPTS)
    assert (found - wanted).abs().max() <= 5e-3 * spread


def test_a_name_of_ollamas_is_served_from_its_blob(
    written: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = add_to_ollama(tmp_path, "registry.ollama.ai/library/story:tiny", written[0].read_bytes())
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob.chmod(0o444)
    with engine("story:tiny") as llm:
        run = llm.spec.run
        assert run.model.path == llm.spec.tokenizer_path == str(blob)
        assert llm.spec.served_names == ("story:tiny",)
        assert (run.quantization.name, llm.spec.tokenizer.name) == ("gguf", "gguf")
        (answer,) = llm.generate(["the dog"], use_tqdm=False)
        assert len(answer.outputs[0].token_ids) > 0


def test_files_of_folders_are_listed_and_served_by_name(written: tuple[Path, Path]) -> None:
    """--model-dir"""
    root = written[0].parents[1]
    found = {model.name: model for model in Stores.of([str(root)]).all_models()}
    assert {"source", "meant", "alone/model.gguf"} <= set(found)
    facts = listed(found["alone/model.gguf"], 1 << 40)
    assert (facts.architecture, facts.fits, facts.fault) == ("Qwen3ForCausalLM", True, "")
    assert not listed(found["meant"], 1000).fits
    for name, model in (("alone/model.gguf", written[0]), ("meant", written[1])):
        spec = resolve(Config.from_fields({"model": name, "model_dir": [str(root)]}))
        assert Path(spec.run.model.path) == model


def test_flags_that_contradict_the_file_are_refused(written: tuple[Path, Path]) -> None:
    file, folder = written
    with pytest.raises(ConfigError, match='stored as "gguf"'):
        resolve(Config.from_fields({"model": str(file), "quantization": "int8"}))
    with pytest.raises(ConfigError, match="--config-format"):
        resolve(Config.from_fields({"model": str(folder), "config_format": "unheard-of"}))
    with pytest.raises(ConfigError, match='no settings in the layout "gguf"'):
        resolve(Config.from_fields({"model": str(folder), "config_format": "gguf"}))


def test_config_format_and_tokenizer_mode_may_be_named(written: tuple[Path, Path]) -> None:
    file, folder = written
    named = {"config_format": "gguf", "tokenizer_mode": "gguf", "load_format": "gguf"}
    spec = resolve(Config.from_fields({"model": str(file), **named}))
    assert spec.run.load_format.name == spec.tokenizer.name == "gguf"
    other = resolve(Config.from_fields({"model": str(file), "tokenizer": str(folder)}))
    assert other.tokenizer.name == "hf"
    assert Path(other.tokenizer_path) == folder


def test_a_size_that_the_tensors_contradict_is_told(
    written: tuple[Path, Path], tmp_path: Path
) -> None:
    import struct

    raw = written[0].read_bytes()
    key = b"qwen3.block_count" + struct.pack("<I", 4)
    assert key in raw
    place = raw.index(key) + len(key)
    broken = raw[:place] + struct.pack("<I", 2**31) + raw[place + 4 :]
    (tmp_path / "m.gguf").write_bytes(broken)
    with pytest.raises(
        ConfigError, match=r"m\.gguf.*blocks: the file holds 2, its settings say 2147483648"
    ):
        resolve(Config.from_fields({"model": str(tmp_path / "m.gguf")}))
