"""A head stored beside `tie_word_embeddings`: one with the table's values is the table; another is
refused, and computes what transformers computes with it once the setting is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.errors import ConfigError
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf
from support.gguf_models import loaded
from support.tiny_encoder_decoders import write_encoder_decoder

TOKENS = list(range(3, 24))
TABLES = {
    "LlamaForCausalLM": "model.embed_tokens.weight",
    "Gemma2ForCausalLM": "model.embed_tokens.weight",
    "GPT2LMHeadModel": "transformer.wte.weight",
    "OPTForCausalLM": "model.decoder.embed_tokens.weight",
    "MambaForCausalLM": "backbone.embeddings.weight",
}
PAIRS = {
    "T5ForConditionalGeneration": ("shared.weight", "decoder.embed_tokens.weight"),
    "BartForConditionalGeneration": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
}


def with_head(
    folder: Path, family: str, table: str, *, head: str = "lm_head.weight", changed: bool
) -> Path:
    """Write a checkpoint whose file holds the head too, with another number in it if `changed`."""
    if family in PAIRS:
        path = folder
        write_encoder_decoder(path, family)
    else:
        path = write_tiny_checkpoint(folder, family, tie_word_embeddings=True)
    file = path / "model.safetensors"
    tensors = load_file(file)
    assert head not in tensors
    tensors[head] = tensors[table].clone()
    if changed:
        tensors[head][5] += 0.5
    save_file(tensors, file, metadata={"format": "pt"})
    return path


def transformers_logits(path: Path) -> torch.Tensor:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


def logits(path: Path, **how: Any) -> torch.Tensor:
    (found,) = PagedModel(load_model(path, dtype="float32", **how)).forward([(0, TOKENS)])
    return found


@pytest.mark.parametrize("family", TABLES)
def test_a_copy_of_the_table_is_the_head(family: str, tmp_path: Path) -> None:
    path = with_head(tmp_path / "m", family, TABLES[family], changed=False)
    assert (logits(path) - transformers_logits(path)).abs().max() < 1e-4


@pytest.mark.parametrize("family", TABLES)
def test_a_head_of_its_own_is_refused_or_used(family: str, tmp_path: Path) -> None:
    path = with_head(tmp_path / "m", family, TABLES[family], changed=True)
    with pytest.raises(ConfigError, match=r"lm_head\.weight.*tie_word_embeddings"):
        logits(path)
    wanted = transformers_logits(path)
    found = logits(path, overrides={"tie_word_embeddings": False})
    assert found.shape == (len(TOKENS), VOCAB_SIZE)
    assert (found - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("family", PAIRS)
def test_tables_of_an_encoder_and_a_decoder_are_one(family: str, tmp_path: Path) -> None:
    table, other = PAIRS[family]
    load_model(with_head(tmp_path / "same", family, table, head=other, changed=False))
    path = with_head(tmp_path / "other", family, table, head=other, changed=True)
    with pytest.raises(ConfigError, match=r"embed_tokens\.weight"):
        load_model(path)


@pytest.mark.parametrize("changed", [False, True])
def test_pickled_files_are_read_alike(changed: bool, tmp_path: Path) -> None:
    family = "LlamaForCausalLM"
    path = with_head(tmp_path / "m", family, TABLES[family], changed=changed)
    file = path / "model.safetensors"
    torch.save(load_file(file), path / "pytorch_model.bin")
    file.unlink()
    if changed:
        with pytest.raises(ConfigError, match=r"lm_head\.weight"):
            logits(path, load_format="pt")
        return
    assert (logits(path, load_format="pt") - transformers_logits(path)).abs().max() < 1e-4


@pytest.mark.parametrize("method", ["int8", "gguf-q8_0"])
@pytest.mark.parametrize("changed", [False, True])
def test_quantizing_loses_no_head(method: str, changed: bool, tmp_path: Path) -> None:
    from dovetail.cli.main import main

    family = "LlamaForCausalLM"
    path = with_head(tmp_path / "m", family, TABLES[family], changed=changed)
    out = tmp_path / "out"
    code = main(["quantize", str(path), "--method", method, "--out", str(out)])
    assert bool(code) == changed
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_gguf_file_has_the_head_that_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    family = "LlamaForCausalLM"
    path = with_head(tmp_path / "m", family, TABLES[family], changed=True)
    file = tmp_path / "model.gguf"
    assert "lm_head.weight" in write_gguf(path, file)
    (found,) = loaded(file).forward([(0, TOKENS)])
    assert (found - transformers_logits(path)).abs().max() < 1e-4
