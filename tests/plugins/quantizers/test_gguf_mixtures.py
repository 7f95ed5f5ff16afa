"""GGUF files of several types: which tensor has which, what is served, and importances."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail.cli.main import main
from dovetail_plugins.gguf.blocks.quantize import to_blocks
from dovetail_plugins.gguf.writing.mixtures import MIXTURES, Facts, fitting, in_order, mixture_of
from dovetail_testing.tiny.models import write_tiny_checkpoint

gguf = pytest.importorskip("gguf")

from support.gguf_models import loaded, prompt, reference  # noqa: E402

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
TEXT = "the dog counts one two three and the fox runs on over the other lazy dogs " * 60


def quantize(source: Path, out: Path, method: str, *words: str) -> Path:
    assert main(["quantize", str(source), "--method", method, "--out", str(out), *words]) == 0
    return out / "model.gguf"


def tensors(file: Path) -> dict[str, Any]:
    return {one.name: one for one in gguf.GGUFReader(file).tensors}


def floats(one: Any) -> np.ndarray[Any, Any]:
    found: Any = gguf.quants.dequantize(one.data, one.tensor_type)
    return found.astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    return write_tiny_checkpoint(root / "hf", "Qwen3ForCausalLM", **WIDE)


def test_types_are_those_of_a_published_file() -> None:
    """Qwen2.5 0.5B in Q4_K_M: rows of 896 do not fit into blocks of 256, rows of 4864 do."""
    facts = Facts(architecture="qwen2", num_layers=24, shared_heads=7, num_experts=0, is_tied=True)
    rows = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"), 896)
    rows |= {"ffn_down": 4864}
    names = [(f"blk.{layer}.{stem}", row) for layer in range(24) for stem, row in rows.items()]
    mixture = MIXTURES["q4_k_m"]
    found = Counter(
        fitting(mixture.type_of(name, facts), row) for name, row in [*names, ("token_embd", 896)]
    )
    assert found == {"Q5_0": 132, "Q8_0": 13, "Q6_K": 12, "Q4_K": 12}


@pytest.mark.parametrize(
    ("method", "name", "kind"),
    [
        ("q4_k_m", "token_embd", "Q4_K"),
        ("q4_k_m", "output", "Q6_K"),
        ("q4_k_m", "blk.0.attn_v", "Q6_K"),
        ("q4_k_m", "blk.5.attn_v", "Q4_K"),
        ("q4_k_m", "blk.6.ffn_down_exps", "Q6_K"),
        ("q4_k_s", "blk.3.ffn_down", "Q5_K"),
        ("q4_k_s", "blk.4.ffn_down", "Q4_K"),
        ("q3_k_m", "blk.1.attn_v", "Q5_K"),
        ("q3_k_m", "blk.2.attn_v", "Q4_K"),
        ("q3_k_m", "blk.9.attn_output", "Q4_K"),
        ("q2_k", "blk.9.ffn_down", "Q3_K"),
        ("q2_k", "blk.9.attn_v", "Q4_K"),
        ("iq4_xs", "blk.3.ffn_down", "Q5_K"),
        ("q8_0", "output", "Q8_0"),
        ("bf16", "output", "BF16"),
    ],
)
def test_types_follow_llama_cpps_rules(method: str, name: str, kind: str) -> None:
    facts = Facts(architecture="llama", num_layers=32, shared_heads=4, num_experts=0, is_tied=False)
    assert MIXTURES[method].type_of(name, facts) == kind


def facts_of(architecture: str, num_layers: int, **fields: Any) -> Facts:
    fields = {"shared_heads": 4, "num_experts": 0, "is_tied": False, **fields}
    return Facts(architecture=architecture, num_layers=num_layers, **fields)


@pytest.mark.parametrize(
    ("method", "name", "kind"),
    [
        ("q4_k_m", "output", "Q8_0"),
        ("q4_k_m", "blk.1.ffn_down", "Q6_K"),
        ("q4_k_m", "blk.3.ffn_down", "Q5_K"),
        ("q4_k_m", "blk.5.ffn_down", "Q4_K"),
        ("q4_k_m", "blk.3.attn_qkv", "Q6_K"),
        ("q4_k_s", "blk.0.ffn_down", "Q4_K"),
        ("q3_k_m", "blk.9.attn_output", "Q3_K"),
        ("q3_k_l", "blk.9.attn_output", "Q4_K"),
        ("q3_k_l", "blk.9.ffn_down", "Q4_K"),
    ],
)
def test_types_of_falcon(method: str, name: str, kind: str) -> None:
    """As llama_model_quantize of llama.cpp gives them to 32 layers."""
    assert mixture_of(method, "falcon").type_of(name, facts_of("falcon", 32)) == kind


def test_where_layers_differ_matrices_of_a_kind_are_counted() -> None:
    """An LFM2 of 20 layers whose every third has attention: the first and last of the six values,
    and those between as they come. With experts, MLPs are counted by their layer."""
    values = tuple(in_order(f"blk.{layer}.attn_v" for layer in range(2, 20, 3)))
    downs = tuple(f"blk.{layer}.ffn_down" for layer in range(2, 20))
    facts = facts_of("lfm2", 20, values=values, downs=downs)
    mixture = MIXTURES["q4_k_m"]
    six = [name for name in values if mixture.type_of(name, facts) == "Q6_K"]
    assert six == ["blk.8.attn_v", "blk.17.attn_v"]
    assert mixture.type_of("blk.3.ffn_down", facts) == "Q6_K"  # the second
    assert mixture.type_of("blk.4.ffn_down", facts) == "Q4_K"  # the third, of 20
    mixed = facts_of("lfm2moe", 20, num_experts=4, values=values, downs=downs)
    assert mixture.type_of("blk.3.ffn_down_exps", mixed) == "Q4_K"
    assert mixture.type_of("blk.4.ffn_down_exps", mixed) == "Q6_K"


def test_encoders_and_decoders_beside_them_have_values_too() -> None:
    names = in_order(f"{side}.blk.{n}.{stem}" for side, stem in
                     (("enc", "attn_v"), ("dec", "attn_v"), ("dec", "cross_attn_v"))
                     for n in range(2))  # fmt: skip
    facts = facts_of("t5", 2, shared_heads=1, is_tied=True, values=tuple(names))
    kinds = [MIXTURES["q3_k_m"].type_of(name, facts) for name in names]
    assert kinds == ["Q5_K"] * 2 + ["Q4_K"] * 4
    assert MIXTURES["q3_k_m"].type_of("per_layer_token_embd", facts) == "Q6_K"


def test_experts_that_the_text_does_not_reach_have_the_type_of_the_others(tmp_path: Path) -> None:
    """Without importances the first eighth has more bits: not expert by expert."""
    source = write_tiny_checkpoint(
        tmp_path / "hf", "Qwen3MoeForCausalLM", num_hidden_layers=8, moe_intermediate_size=256,
        hidden_size=256,
    )  # fmt: skip
    (tmp_path / "text.txt").write_text(TEXT)
    file = quantize(source, tmp_path / "out", "gguf-iq4_xs", "--calibrate",
                    str(tmp_path / "text.txt"), "--calibration-tokens", "512",
                    "--save-imatrix", str(tmp_path / "imatrix.gguf"))  # fmt: skip
    counts = tensors(tmp_path / "imatrix.gguf")["blk.0.ffn_down_exps.weight.counts"].data
    assert counts.min() == 0 < counts.max(), "each expert has tokens: the test shows nothing"
    assert tensors(file)["blk.0.ffn_down_exps.weight"].tensor_type.name == "IQ4_XS"


@pytest.mark.parametrize("method", ["gguf-q4_k_m", "gguf-q2_k", "gguf-iq4_xs", "gguf-q6_k"])
def test_what_is_served_is_what_the_package_reads(
    method: str, folder: Path, tmp_path: Path
) -> None:
    file, tokens = quantize(folder, tmp_path / "out", method), prompt(24)
    stored, names = tensors(file), gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    meant = {
        name: floats(stored[names.get_name(name, try_suffixes=(".weight",))])
        for name in load_file(folder / "model.safetensors")
    }
    right = reference(folder, meant, tokens, tmp_path / "meant")
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())


def test_plain_floats_are_rounded_once(folder: Path, tmp_path: Path) -> None:
    stored = tensors(quantize(folder, tmp_path / "out", "gguf-bf16"))
    weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    one = stored["blk.0.ffn_up.weight"]
    assert one.tensor_type.name == "BF16"
    assert np.array_equal(floats(one), weight.bfloat16().float().numpy())
    assert stored["blk.0.ffn_norm.weight"].tensor_type.name == "F32"


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_file_of_floats_is_quantized_tensor_by_tensor(name: str, tmp_path: Path) -> None:
    """Settings stay as they are; experts are one tensor."""
    more = {"moe_intermediate_size": 256} if "Moe" in name else {}
    source = write_tiny_checkpoint(tmp_path / "hf", name, **WIDE, **more)
    plain = quantize(source, tmp_path / "f16", "gguf-f16")
    file = quantize(plain, tmp_path / "out", "gguf-q4_k_s")
    before, after = gguf.GGUFReader(plain), gguf.GGUFReader(file)
    for key, field in before.fields.items():
        if not key.startswith(("GGUF.", "general.file_type")):
            assert after.fields[key].contents() == field.contents(), key
            assert after.fields[key].types == field.types, key
    stored = tensors(file)
    assert after.fields["general.file_type"].contents() == 14
    for one in before.tensors:
        there = stored[one.name]
        if there.tensor_type == one.tensor_type:
            assert np.array_equal(there.data, one.data)
            continue
        weight = torch.from_numpy(np.array(one.data)).float()
        assert np.array_equal(there.data, to_blocks(there.tensor_type.name, weight).numpy())
    kinds = {stored[name].tensor_type.name for name in stored if "_exps" in name or "attn" in name}
    assert {"Q4_K", "Q5_K"} <= kinds


def test_what_is_quantized_is_not_quantized_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = quantize(folder, tmp_path / "q8", "gguf-q8_0")
    assert main(["quantize", str(file), "--method", "gguf-q4_k_m", "--out", str(tmp_path / "o")])
    assert "quantized already (Q8_0)" in capsys.readouterr().err


def test_importances_of_a_text_can_be_used_again(folder: Path, tmp_path: Path) -> None:
    """The file of importances has llama.cpp's names, and gives the same blocks as the text."""
    (tmp_path / "text.txt").write_text(TEXT)
    saved = tmp_path / "imatrix.gguf"
    by_text = quantize(folder, tmp_path / "text", "gguf-q3_k_m", "--calibrate",
                       str(tmp_path / "text.txt"), "--save-imatrix", str(saved))  # fmt: skip
    by_file = quantize(folder, tmp_path / "file", "gguf-q3_k_m", "--imatrix", str(saved))
    without = quantize(folder, tmp_path / "none", "gguf-q3_k_m")
    reader = gguf.GGUFReader(saved)
    sums = {one.name: one for one in reader.tensors}
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents()
    assert sums["blk.1.ffn_down.weight.in_sum2"].shape.tolist() == [512, 1]
    assert sums["blk.1.ffn_down.weight.counts"].shape.tolist() == [1, 1]
    noted = [
        {key: field.contents() for key, field in gguf.GGUFReader(file).fields.items()
         if key.startswith("quantize.imatrix.")}
        for file in (by_text, by_file, without)
    ]  # fmt: skip
    assert noted == [{"quantize.imatrix.dataset": "dovetail quantize --calibration"},
                     {"quantize.imatrix.file": "imatrix.gguf"}, {}]  # fmt: skip
    first, second, plain = tensors(by_text), tensors(by_file), tensors(without)
    weights = load_file(folder / "model.safetensors")
    for stem, theirs in (("blk.1.ffn_down", "layers.1.mlp.down_proj"),
                         ("blk.0.attn_q", "layers.0.self_attn.q_proj")):  # fmt: skip
        name = f"{stem}.weight"
        # Sums and counts are float32, so that a mean may differ in its last digit.
        same = (first[name].data == second[name].data).mean()
        assert same > 0.999
        scale = sums[f"{name}.in_sum2"].data
        weight = weights[f"model.{theirs}.weight"].float().numpy()
        wrong = [((floats(one[name]) - weight) ** 2 * scale).sum() for one in (first, plain)]
        assert wrong[0] < wrong[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--imatrix", "NONE"], "there is no such file"),
        (["--imatrix", "TEXT"], "it is not a GGUF file"),
        (["--imatrix", "MODEL"], "general.type"),
        (["--imatrix", "SMALL"], "in the model 256"),
        (["--imatrix", "NEGATIVE"], "negative or not finite"),
        (["--imatrix", "SMALL", "--calibration", "TEXT"], "not from both"),
        (["--save-imatrix", "NEW"], "no text to take importances from"),
        (["--method", "int8", "--imatrix", "SMALL"], "no use for importances"),
    ],
)
def test_importances_that_do_not_fit(
    words: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dovetail_plugins.gguf.writing.write import write_file

    (tmp_path / "TEXT").write_text(TEXT)
    write_file(tmp_path / "MODEL", {"general.architecture": "qwen3"}, {"a": torch.ones(2)})
    for name, size, sign in (("SMALL", 64, 1), ("NEGATIVE", 256, -1)):
        sums = {"blk.0.attn_q.weight.in_sum2": sign * torch.ones(1, size),
                "blk.0.attn_q.weight.counts": torch.ones(1, 1)}  # fmt: skip
        write_file(tmp_path / name, {"general.type": "imatrix"}, sums)
    words = [str(tmp_path / word) if word.isupper() else word for word in words]
    method = [] if "--method" in words else ["--method", "gguf-q4_k_m"]
    assert main(["quantize", str(folder), *method, "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list((tmp_path).glob("out/*"))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_numbers_that_are_not_finite_are_named(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[name].view(-1)[7] = float("nan")
    broken = tmp_path / "hf"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    words = ["--method", "gguf-q4_k_m", "--out", str(tmp_path / "out")]
    assert main(["quantize", str(broken), *words]) == 2
    assert name in capsys.readouterr().err
    assert not list((tmp_path).glob("out/*"))


def test_a_full_disk_leaves_no_file(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail_plugins.gguf.writing.write.shutil.copyfileobj", full)
    words = ["--method", "gguf-q4_k_m", "--out", str(tmp_path / "out")]
    assert main(["quantize", str(folder), *words]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list((tmp_path).glob("out/*"))


def test_rows_that_do_not_fit_get_another_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_tiny_checkpoint(
        tmp_path / "hf", "Qwen3ForCausalLM", hidden_size=256, intermediate_size=96
    )
    file = quantize(source, tmp_path / "out", "gguf-q5_k_s")
    assert tensors(file)["blk.0.ffn_down.weight"].tensor_type.name == "Q5_1"
    assert "mlp.down_proj and 3 more: Q5_1 instead of Q5_K" in caplog.text
    config = json.loads((source / "config.json").read_text())
    assert config["intermediate_size"] == 96


def test_layers_that_draft_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A layer behind those that config.json counts, as GLM-4.5's checkpoints have."""
    source = write_tiny_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM", **WIDE)
    weights = load_file(source / "model.safetensors")
    more = {"model.layers.2.eh_proj.weight": torch.ones(256, 512)}
    save_file(weights | more, source / "model.safetensors", metadata={"format": "pt"})
    stored = tensors(quantize(source, tmp_path / "out", "gguf-q4_k_m"))
    assert not [name for name in stored if name.startswith("blk.2.")]
    assert "model.layers.2.eh_proj" in caplog.text
