"""Whisper in CTranslate2's layout becomes what transformers saves: the same weights, the settings
and the tokens of times; what is cut off or unknown is said."""

from __future__ import annotations

import importlib
import json
import re
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from support.tiny_encoder_decoders import write_encoder_decoder

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
TYPES = {"float32": 0, "int8": 1, "int16": 2}
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>")
SPECIAL += ("<|startofprev|>", "<|notimestamps|>")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.ctranslate2_files")


def text(word: str) -> bytes:
    return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"


def variable(name: str, array: np.ndarray) -> bytes:
    shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
    kind = struct.pack("<BI", TYPES[array.dtype.name], array.nbytes)
    return text(name) + shape + kind + array.tobytes()


def layout_of(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights of transformers under CTranslate2's names, fused as there."""
    found: dict[str, np.ndarray] = {"decoder/alignment_layer": np.array(-1, dtype=np.int16)}
    for side in ("encoder", "decoder"):
        found[f"{side}/num_heads"] = np.array(2, dtype=np.int16)
        at = f"model.{side}"
        found[f"{side}/position_encodings/encodings"] = weights[f"{at}.embed_positions.weight"]
        for leaf, name in (("gamma", "weight"), ("beta", "bias")):
            found[f"{side}/layer_norm/{leaf}"] = weights[f"{at}.layer_norm.{name}"]
        for i in range({"encoder": 2, "decoder": 3}[side]):
            found |= layer_of(weights, f"{at}.layers.{i}", f"{side}/layer_{i}", side == "decoder")
    for name in ("conv1", "conv2"):
        for leaf in ("weight", "bias"):
            found[f"encoder/{name}/{leaf}"] = weights[f"model.encoder.{name}.{leaf}"]
    found["decoder/embeddings/weight"] = weights["model.decoder.embed_tokens.weight"]
    return found


def layer_of(
    weights: dict[str, np.ndarray], there: str, here: str, has_cross: bool
) -> dict[str, np.ndarray]:
    def joined(names: list[str], leaf: str) -> np.ndarray:
        nothing = np.zeros(32, dtype=np.float32)
        parts = [weights.get(f"{there}.{name}.{leaf}", nothing) for name in names]
        return np.concatenate(parts)

    def attention(name: str) -> list[str]:
        return [f"{name}.{part}_proj" for part in "qkv"]

    linears = {"self_attention/linear_0": attention("self_attn")}
    linears |= {"self_attention/linear_1": ["self_attn.out_proj"]}
    linears |= {"ffn/linear_0": ["fc1"], "ffn/linear_1": ["fc2"]}
    norms = {"self_attention": "self_attn_layer_norm", "ffn": "final_layer_norm"}
    if has_cross:
        linears["attention/linear_0"] = attention("encoder_attn")[:1]
        linears["attention/linear_1"] = attention("encoder_attn")[1:]
        linears["attention/linear_2"] = ["encoder_attn.out_proj"]
        norms["attention"] = "encoder_attn_layer_norm"
    found = {
        f"{here}/{name}/{leaf}": joined(names, leaf)
        for name, names in linears.items()
        for leaf in ("weight", "bias")
    }
    for name, norm in norms.items():
        for leaf, own in (("gamma", "weight"), ("beta", "bias")):
            found[f"{here}/{name}/layer_norm/{leaf}"] = weights[f"{there}.{norm}.{own}"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Return a folder as faster-whisper's, and transformers' weights of the same model."""
    model = write_encoder_decoder(tmp_path / "theirs", "WhisperForConditionalGeneration")
    state = dict(model.state_dict())
    found = layout_of({name: tensor.numpy() for name, tensor in state.items()})
    head = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(found))
    body = b"".join(variable(name, array) for name, array in sorted(found.items()))
    tail = struct.pack("<I", 1) + text("decoder/projection/weight")
    (tmp_path / "model.bin").write_bytes(head + body + tail + text("decoder/embeddings/weight"))
    words = [{"id": 300 + i, "content": word, "special": True} for i, word in enumerate(SPECIAL)]
    told = {"added_tokens": words, "model": {"vocab": {"a": 0}, "merges": ["a b"]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(told))
    config = {"lang_ids": [302], "suppress_ids": [1], "suppress_ids_begin": [2]}
    config |= {"alignment_heads": [[1, 0], [2, 1]]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, state


def test_weights_and_settings(
    files: ModuleType, folder: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    path, wanted = folder
    assert files.main([str(path), str(path / "out")]) == 0
    made = transformers.WhisperForConditionalGeneration.from_pretrained(
        path / "out", dtype=torch.float32
    )
    found = made.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    config, generation = made.config, made.generation_config
    sizes = (config.d_model, config.encoder_layers, config.decoder_layers, config.num_mel_bins)
    assert sizes == (32, 2, 3, 8)
    assert generation.alignment_heads == [[1, 0], [2, 1]]
    assert generation.lang_to_id == {"<|en|>": 302} and generation.no_timestamps_token_id == 306
    words = json.loads((path / "out" / "tokenizer.json").read_text())["added_tokens"]
    times = {one["content"]: one["id"] for one in words}
    assert (times["<|0.00|>"], times["<|30.00|>"]) == (307, 307 + 1500)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:900], "bytes for the shape|in the middle"),
        (lambda data: data + b"x", "behind its end"),
        (lambda data: data.replace(b"WhisperSpec", b"WhisperSpeq"), "WhisperSpeq of version 6"),
        (lambda data: data.replace(b"layer_0/ffn", b"layer_0/fff"), "has no place"),
    ],
)
def test_what_is_wrong_is_said(
    files: ModuleType,
    folder: tuple[Path, dict[str, torch.Tensor]],
    change: object,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, _ = folder
    weights = path / "model.bin"
    weights.write_bytes(change(weights.read_bytes()))  # type: ignore[operator]
    assert files.main([str(path), str(path / "out")]) == 1
    assert re.search(said, capsys.readouterr().err)
