"""The example package's quantization method and load format, against transformers and numpy."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail.registry import load
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import dequantized_model, found_logprobs, round_inputs, wanted_logprobs

EXAMPLE = Path(__file__).resolve().parents[2] / "contrib/example-plugin/dovetail_example_plugin"
BITNET = f"{EXAMPLE}/bitnet.py:BitNet"
NPZ = f"{EXAMPLE}/npz.py:Npz"
PROMPTS = [[1, 5, 9, 20, 4], [3, 3, 7]]
BOUND = 1e-3
"""Of the logits' deviation: both sides round inputs to 8 bits, at ties not always alike."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unquantized model."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("plain"), "LlamaForCausalLM")


def is_stored(name: str) -> bool:
    """Return whether a checkpoint's tensor is one that BitNet packs."""
    return name.endswith("_proj.weight")


def parted(weight: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the nearest of -1, 0 and 1 for every weight, and the number they are divided by."""
    scale = 1.0 / weight.abs().mean().item()
    return (weight * scale).round().clamp(-1, 1), scale


def stored(plain: Path, *, linear_class: str) -> dict[str, torch.Tensor]:
    """Return the model's tensors packed by transformers."""
    from transformers.integrations.bitnet import pack_weights

    tensors = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not is_stored(name):
            tensors[name] = tensor
            continue
        values, scale = parted(tensor.float())
        tensors[name] = pack_weights(values)
        factor = scale if linear_class == "bitlinear" else 1.0 / scale
        tensors[f"{name}_scale"] = torch.tensor([factor])
    return tensors


def folder_of(plain: Path, folder: Path, **stored_as: Any) -> Path:
    """Return a folder with all of a model but its weights, and a quantization_config."""
    folder.mkdir()
    for file in plain.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", **stored_as}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def found(path: Path, **flags: Any) -> torch.Tensor:
    """Return the engine's logprobs for the prompts."""
    with LLM(
        model=str(path),
        quantization=BITNET,
        dtype="float32",
        num_gpu_blocks_override=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
        **flags,
    ) as llm:
        return found_logprobs(llm, PROMPTS)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Return inputs at 8 bits a token."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


@pytest.mark.parametrize("linear_class", ["bitlinear", "autobitlinear"])
def test_logits(plain: Path, tmp_path: Path, linear_class: str) -> None:
    path = folder_of(plain, tmp_path / "model", linear_class=linear_class)
    save_file(stored(plain, linear_class=linear_class), path / "model.safetensors")

    def meant(name: str, weight: torch.Tensor) -> torch.Tensor:
        values, scale = parted(weight)
        return values / scale if is_stored(f"{name}.weight") else weight

    model = dequantized_model(plain, meant)
    round_inputs(model.model, rounded)
    wanted, deviation = wanted_logprobs(model, PROMPTS)
    assert (found(path) - wanted).abs().max().item() / deviation <= BOUND


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"linear_class": "other"}, "linear_class"),
        ({"quantization_mode": "online"}, "quantized while it runs"),
        ({"use_rms_norm": True}, "use_rms_norm"),
    ],
)
def test_other_configs_are_refused(
    plain: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = folder_of(plain, tmp_path / "model", **changes)
    save_file(stored(plain, linear_class="bitlinear"), path / "model.safetensors")
    with pytest.raises(ConfigError, match=said):
        found(path)


def test_an_archive_of_numpys_own(plain: Path, tmp_path: Path) -> None:
    tensors = stored(plain, linear_class="bitlinear")
    one = folder_of(plain, tmp_path / "one")
    save_file(tensors, one / "model.safetensors")
    other = folder_of(plain, tmp_path / "other")
    np.savez(other / "weights.npz", **{name: t.numpy() for name, t in tensors.items()})
    assert torch.equal(found(one), found(other, load_format=NPZ))


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder's archives."""
    npz = load("load_format", NPZ)
    return dict(npz(npz.Options()).tensors(Checkpoint(path=str(folder))))


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    npz = load("load_format", NPZ)
    tensors = {"a": torch.randn(3, 4), "b.c": torch.arange(5), "h": torch.randn(2, 2).bfloat16()}
    size = npz.write(str(tmp_path), tensors.items(), rank=Checkpoint(path="").rank)
    (file,) = tmp_path.glob("*.npz")
    assert size == file.stat().st_size
    with np.load(file, allow_pickle=False) as archive:
        assert sorted(archive) == sorted(tensors)
        assert np.array_equal(archive["a"], tensors["a"].numpy())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in read(tmp_path).items())


def test_columns_first(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(tmp_path / "x.npz", array=array, single=np.float32(3))
    got = read(tmp_path)
    assert torch.equal(got["array"], torch.from_numpy(array.copy()))
    assert got["single"].shape == () and got["single"] == 3


def test_wrong_archives_are_named(tmp_path: Path) -> None:
    def says(*words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            read(tmp_path)
        assert all(word in str(caught.value) for word in ("x.npz", *words))

    file = tmp_path / "x.npz"
    np.savez_compressed(file, a=np.zeros(4000))
    says("a.npy", "compressed")
    np.savez(file, a=np.array([{}], dtype=object))
    says("a.npy", "not numbers")
    with zipfile.ZipFile(file, "w") as archive:
        header = b"\x93NUMPY\x01\x00\x76\x00"
        text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
        archive.writestr("a.npy", header + text.ljust(117).encode() + b"\n")
    says("a.npy", "does not fit")
    file.write_bytes(file.read_bytes()[:60])
    says("not an archive")
