"""What `dovetail quantize` writes, dovetail and other libraries read as the matrices that it meant.

The reference is transformers with the meant matrices in float32; packing and layout are not shared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail.cli.main import main
from dovetail_plugins.quantize import job
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import found_logprobs, wanted_logprobs

SIZES = {"hidden_size": 64, "intermediate_size": 128}
PROMPTS = [list(range(3, 40)), [40, 41, 42]]
BOUND = 1e-3
ROUNDED = 3e-2
"""Of the logits' range: float activations, and those that the reader rounds to 8 bits."""
CASES: dict[str, tuple[str, list[str], float]] = {
    "int8": ("int8", ["--plugin-options.quantizer.activations", "float"], BOUND),
    "int8-w8a8": ("int8", [], ROUNDED),
    "int4": ("int4", ["--group", "32"], BOUND),
    "fp8": ("fp8", [], BOUND),
    "fp8-matrix": ("fp8", ["--plugin-options.quantizer.scale", "matrix"], BOUND),
    "gptq": ("gptq", [], BOUND),
    "gptq-8": ("gptq", ["--plugin-options.quantizer.bits", "8"], BOUND),
    "awq": ("awq", [], BOUND),
    "gguf-q8_0": ("gguf-q8_0", [], BOUND),
    "gguf-q4_0": ("gguf-q4_0", [], BOUND),
}
CALIBRATED = ("gptq", "awq")
INPUTS_FIRST = ("c_attn", "c_proj", "c_fc")
TAKES_ACTIVATIONS = ("int8", "int4", "gptq", "awq", "gguf-q8_0", "gguf-q4_0")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a text that no tokenizer has learnt by heart."""
    file = tmp_path_factory.mktemp("text") / "calibration.txt"
    words = "the dog counts one two three and on, user: what is a fox? assistant: quick brown\n"
    file.write_text("".join(words[i % 60 :] + str(i) for i in range(60)))
    return file


@pytest.fixture
def meant(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, torch.Tensor]]:
    """Return what the matrices mean that a command is about to write."""
    seen: dict[str, torch.Tensor] = {}
    real = job.error_of

    def noting(name: str, weight: torch.Tensor, done: Any, *rest: Any) -> Any:
        seen[name] = done.meant.float()
        return real(name, weight, done, *rest)

    monkeypatch.setattr(job, "error_of", noting)
    yield seen


def quantize(source: Path, out: Path, method: str, *words: str) -> int:
    return main(["quantize", str(source), "--method", method, "--out", str(out), *words])


def reference(source: Path, out: Path, meant: dict[str, torch.Tensor], folder: Path) -> Any:
    """Return transformers' model of the source, with the meant matrices and what was scaled.

    It reads a checkpoint of full precision in which they stand, by its own rules.
    """
    import transformers

    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    for file in out.glob("*.safetensors"):
        written = load_file(file)
        tensors |= {
            name: t for name, t in written.items() if is_vector(name, t) and name in tensors
        }
    for name, matrix in meant.items():
        full = f"{name}.weight"
        kept = full if full in tensors else "model.embed_tokens.weight"
        tensors[kept] = matrix.T if name.endswith(INPUTS_FIRST) else matrix
    tensors = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def is_vector(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and name.endswith((".weight", ".bias"))


def error(out: Path, model: Any, *, has_option: bool) -> float:
    """Return the largest distance of a logprob, in the range of the logits."""
    options = {"quantization": {"activations": "float"}} if has_option else {}
    with LLM(
        model=str(out),
        num_gpu_blocks_override=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
        dtype="float32",
        kv_cache_dtype="float32",
        plugin_options=options,
    ) as llm:
        found = found_logprobs(llm, PROMPTS)
    wanted, _ = wanted_logprobs(model, PROMPTS)
    span = wanted.amax(-1, keepdim=True) - wanted.amin(-1, keepdim=True)
    return float(((found - wanted).abs() / span).max())


@pytest.mark.parametrize("case", CASES)
def test_dovetail_reads_what_was_meant(
    case: str, text: Path, meant: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    method, words, bound = CASES[case]
    source = write_tiny_checkpoint(tmp_path / "source", "Qwen3ForCausalLM", **SIZES)
    if method in CALIBRATED:
        words = [*words, "--calibration", str(text)]
    assert quantize(source, tmp_path / "out", method, *words) == 0
    assert len(meant) == 14 + 2 * method.startswith("gguf")
    model = reference(source, tmp_path / "out", meant, tmp_path / "meant")
    has_option = method in TAKES_ACTIVATIONS and case != "int8-w8a8"
    assert error(tmp_path / "out", model, has_option=has_option) <= bound


FAMILIES: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": SIZES,
    "Qwen2MoeForCausalLM": SIZES | {"moe_intermediate_size": 32,
                                    "shared_expert_intermediate_size": 64},
    "Qwen3MoeForCausalLM": SIZES | {"moe_intermediate_size": 64},
    "GPT2LMHeadModel": {"n_embd": 64},
    "Phi3ForCausalLM": SIZES,
    "NemotronForCausalLM": SIZES,
    "Olmo2ForCausalLM": SIZES,
}  # fmt: skip
OF_FAMILIES = [
    ("NemotronForCausalLM", "awq"),
    ("Olmo2ForCausalLM", "awq"),
    ("MixtralForCausalLM", "gptq"),
    ("MixtralForCausalLM", "int4"),
    ("MixtralForCausalLM", "fp8"),
    ("Qwen2MoeForCausalLM", "awq"),
    ("Qwen2MoeForCausalLM", "int8"),
    ("Qwen3MoeForCausalLM", "gptq"),
    ("Qwen3MoeForCausalLM", "gguf-q8_0"),
    ("GPT2LMHeadModel", "gptq"),
    ("GPT2LMHeadModel", "awq"),
    ("GPT2LMHeadModel", "int8-w8a8"),
    ("GPT2LMHeadModel", "fp8"),
    ("GPT2LMHeadModel", "gguf-q4_0"),
    ("Phi3ForCausalLM", "awq"),
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("architecture", "case"), OF_FAMILIES)
def test_other_families(
    architecture: str, case: str, text: Path, meant: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Experts, matrices that are stored inputs first, and fused ones."""
    method, words, bound = CASES[case]
    source = write_tiny_checkpoint(tmp_path / "source", architecture, **FAMILIES[architecture])
    if method in CALIBRATED:
        words = [*words, "--calibration", str(text)]
    assert quantize(source, tmp_path / "out", method, *words) == 0
    assert not any(name.endswith((".gate", "shared_expert_gate")) for name in meant)
    model = reference(source, tmp_path / "out", meant, tmp_path / "meant")
    has_option = method in TAKES_ACTIVATIONS and case != "int8-w8a8"
    assert error(tmp_path / "out", model, has_option=has_option) <= bound


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "LlamaForCausalLM"])
def test_awq_scales_no_block_into_another(architecture: str, text: Path, tmp_path: Path) -> None:
    """Norms that add one, four norms a block, values of every head its own: the command itself
    refuses a block that computes something else once it is scaled."""
    more = {"num_key_value_heads": 4} if architecture.startswith("Llama") else {}
    source = write_tiny_checkpoint(tmp_path / "source", architecture, **SIZES, **more)
    before = load_file(source / "model.safetensors")
    for norm, weight in before.items():
        if norm.endswith("input_layernorm.weight"):
            weight[::16] += 20.0  # some inputs are far stronger, as those of real models are
    save_file(before, source / "model.safetensors", metadata={"format": "pt"})
    assert quantize(source, tmp_path / "out", "awq", "--calibration", str(text)) == 0
    after = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.0.input_layernorm.weight"
    assert not torch.equal(before[name], after[name])


@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_reads_it(meant: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Its own decompressor gives the matrices that were meant."""
    pytest.importorskip("compressed_tensors")
    import transformers

    source = write_tiny_checkpoint(tmp_path / "source", "LlamaForCausalLM", **SIZES)
    for method, words in (
        ("int4", ["--group", "32"]),
        ("int8", []),
        ("int8", ["--plugin-options.quantizer.activations", "float"]),
    ):
        out = tmp_path / f"{method}{len(words)}"
        assert quantize(source, out, method, *words) == 0
        config = transformers.CompressedTensorsConfig(run_compressed=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            out, dtype=torch.float32, quantization_config=config
        )
        for name, matrix in meant.items():
            found = model.get_submodule(name).weight
            torch.testing.assert_close(found.float(), matrix, rtol=1e-2, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_transformers_reads_fp8(meant: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Its FP8 quantizer dequantizes the blocks to the matrices that were meant."""
    pytest.importorskip("accelerate")
    import transformers

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}
    source = write_tiny_checkpoint(tmp_path / "source", "LlamaForCausalLM", **sizes)
    assert quantize(source, tmp_path / "out", "fp8") == 0
    config = transformers.FineGrainedFP8Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, quantization_config=config
    )
    for name, matrix in meant.items():
        found = model.get_submodule(name).weight
        torch.testing.assert_close(found.float(), matrix, rtol=1e-2, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["int4", "fp8"])
def test_transformers_reads_experts(
    method: str, meant: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """It puts the experts' matrices together again as those that were meant."""
    pytest.importorskip("compressed_tensors" if method == "int4" else "accelerate")
    import transformers

    source = write_tiny_checkpoint(
        tmp_path / "source", "Qwen3MoeForCausalLM", **SIZES, moe_intermediate_size=64
    )
    assert quantize(source, tmp_path / "out", method) == 0
    config = (
        transformers.CompressedTensorsConfig(run_compressed=False)
        if method == "int4"
        else transformers.FineGrainedFP8Config(dequantize=True)
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, quantization_config=config
    )
    for number in range(4):
        name = f"model.layers.1.mlp.experts.{number}"
        experts = model.model.layers[1].mlp.experts
        both = torch.cat([meant[f"{name}.gate_proj"], meant[f"{name}.up_proj"]])
        torch.testing.assert_close(experts.gate_up_proj[number].float(), both, rtol=1e-2, atol=1e-4)
        down = experts.down_proj[number].float()
        torch.testing.assert_close(down, meant[f"{name}.down_proj"], rtol=1e-2, atol=1e-4)


def test_everything_else_is_copied(tmp_path: Path) -> None:
    source = write_tiny_checkpoint(tmp_path / "source", "Qwen3ForCausalLM", **SIZES)
    out = tmp_path / "out"
    assert quantize(source, out, "int4") == 0
    files = {file.name for file in source.iterdir()}
    assert {file.name for file in out.iterdir()} == files
    config = json.loads((out / "config.json").read_text())
    stored = config.pop("quantization_config")
    assert config == json.loads((source / "config.json").read_text())
    assert stored["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert stored["ignore"] == ["lm_head"]
