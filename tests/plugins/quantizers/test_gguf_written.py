"""GGUF files of `dovetail quantize` against those that the gguf package writes of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail.cli.main import main
from dovetail_plugins.gguf.blocks.quantize import QUANTIZERS
from dovetail_testing.tiny.models import write_tiny_checkpoint

gguf = pytest.importorskip("gguf")

from support.gguf_cases import CASES  # noqa: E402
from support.gguf_files import write_gguf  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
FOUR_EXPERTS: dict[str, Any] = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                                "moe_intermediate_size": 32}  # fmt: skip
"""Of eight experts, llama.cpp stores keys and values in 8 bits."""
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"head_dim": 16},
    "MixtralForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen2MoeForCausalLM": {
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
    },
    "Qwen3ForCausalLM": {},
    "Qwen3MoeForCausalLM": {"moe_intermediate_size": 32},
    "Phi3ForCausalLM": {},
    "Gemma2ForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "GPT2LMHeadModel": {"n_embd": 64},
    "Olmo2ForCausalLM": {},
    "Olmo3ForCausalLM": {},
    "OlmoForCausalLM": {},
    "OlmoeForCausalLM": {},
    "GraniteForCausalLM": {},
    "Glm4ForCausalLM": {},
    "Glm4MoeForCausalLM": FOUR_EXPERTS,
    "SmolLM3ForCausalLM": CASES["smollm3"][1],
    "Ernie4_5ForCausalLM": {},
    "Ernie4_5_MoeForCausalLM": {"moe_intermediate_size": 32},
    "HunYuanDenseV1ForCausalLM": {},
    "HunYuanMoEV1ForCausalLM": {},
    "SeedOssForCausalLM": {},
    "Exaone4ForCausalLM": {},
    "ArceeForCausalLM": {},
    "CohereForCausalLM": {},
    "Cohere2ForCausalLM": {},
    "NemotronForCausalLM": {},
    "Dots1ForCausalLM": {"sliding_window": None, **FOUR_EXPERTS},
}
OURS_ALONE = ("general.", "tokenizer.ggml.pre", "GGUF.", ".vocab_size", ".rope.dimension_count")
"""Settings that the package's file has not or has otherwise."""


def quantize(source: Path, out: Path, method: str = "gguf-q4_0") -> Path:
    assert main(["quantize", str(source), "--method", method, "--out", str(out)]) == 0
    return out / "model.gguf"


def settings(reader: Any) -> dict[str, Any]:
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if not any(word in name for word in OURS_ALONE)
    }


def shape(one: Any) -> list[int]:
    """Return a tensor's axes as ggml counts them: without ones at the end."""
    axes = one.shape.tolist()
    while len(axes) > 1 and axes[-1] == 1:
        axes.pop()
    return axes


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_blocks_are_the_packages(kind: str) -> None:
    """Bit for bit, halves and rows of zeros among them."""
    values = torch.randn(33, 256, generator=torch.Generator().manual_seed(3))
    values[0], values[1, :32] = 0, 0.5
    values[2] = torch.arange(256).sub(128) / 127 * 4
    found = QUANTIZERS[kind](values).numpy()
    wanted = gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(found, wanted)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_file_is_the_packages(architecture: str, tmp_path: Path) -> None:
    """Same tensors, types and bytes; same settings but for those that only one of them writes."""
    source = write_tiny_checkpoint(
        tmp_path / "source", architecture, **SIZES | FAMILIES[architecture]
    )
    wide = ("token_embd", "output.")
    write_gguf(source, tmp_path / "package.gguf",
               lambda name: "Q8_0" if name.startswith(wide) else "Q4_0")  # fmt: skip
    ours = gguf.GGUFReader(quantize(source, tmp_path / "out"))
    theirs = gguf.GGUFReader(tmp_path / "package.gguf")
    found = {one.name: one for one in ours.tensors}
    assert found.keys() == {one.name for one in theirs.tensors}
    for wanted in theirs.tensors:
        one = found[wanted.name]
        assert (one.tensor_type, shape(one)) == (wanted.tensor_type, shape(wanted))
        assert one.data.tobytes() == wanted.data.tobytes(), wanted.name
    told = settings(ours)
    for name, value in settings(theirs).items():
        if name == "qwen2moe.attention.sliding_window":
            assert name not in told  # the config says that it is not used
        elif isinstance(value, float):
            assert told[name] == pytest.approx(value), name
        else:
            assert told[name] == value, name


def test_llama_3_divisors_are_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
               "rope_theta": 500.0}  # fmt: skip
    source = write_tiny_checkpoint(
        tmp_path / "source", "LlamaForCausalLM", **SIZES, head_dim=32, rope_parameters=scaling
    )
    reader = gguf.GGUFReader(quantize(source, tmp_path / "out"))
    divisors = next(one.data for one in reader.tensors if one.name == "rope_freqs.weight")
    config = AutoConfig.from_pretrained(source)
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500.0 ** -(torch.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(plain.numpy() / divisors, wanted.numpy(), rtol=1e-5)


def test_the_tokenizer_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of kinds that GGUF knows the same tokens come back; others are told."""
    from tokenizers import Tokenizer

    from dovetail_plugins.gguf.vocabulary.read import read_tokenizer

    source = write_tiny_checkpoint(tmp_path / "source", "Qwen3ForCausalLM", **SIZES)
    text, named = read_tokenizer(quantize(source, tmp_path / "out"))
    ours, theirs = Tokenizer.from_str(text), Tokenizer.from_file(str(source / "tokenizer.json"))
    sample = "the quick dog's 123 tests <|end|>user: what?\n\n  naïve"
    assert ours.encode(sample).ids == theirs.encode(sample).ids
    assert named["chat_template"] == json.loads((source / "tokenizer_config.json").read_text()).get(
        "chat_template"
    )
    assert "no pre-tokenizer" not in caplog.text


def sentence_pieces() -> Any:
    """Return a tokenizer as those of Llama 2 and Gemma are: merged pieces, else bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse()])  # fmt: skip
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["the dog and the fox and the other dogs run on"] * 3, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(content))


def test_pieces_with_bytes_come_back(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from dovetail_plugins.gguf.reading.file import GgufModel
    from dovetail_plugins.gguf.vocabulary.read import tokenizer_of
    from dovetail_plugins.gguf.vocabulary.write import tokenizer_settings

    theirs = sentence_pieces()
    (tmp_path / "tokenizer.json").write_text(theirs.to_str())
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    written = tokenizer_settings(tmp_path, 400)
    assert written["tokenizer.ggml.model"] == "llama"
    assert (written["tokenizer.ggml.bos_token_id"], written["tokenizer.ggml.eos_token_id"]) == (
        1,
        2,
    )
    text, _ = tokenizer_of(GgufModel(path=tmp_path, settings=written, extents=()))
    ours = Tokenizer.from_str(text)
    for sample in ("the dogs and the fox", "on  and on", "naïve 中 the</s>dog"):
        assert ours.encode(sample, add_special_tokens=False).ids == theirs.encode(sample).ids
