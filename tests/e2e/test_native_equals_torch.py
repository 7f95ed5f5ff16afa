"""The native kernels compute what torch and transformers compute, in every format of weights.

Run as a script with a checkpoint folder it prints its answers, so that a process without the
native library can be asked for the same ones.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.runner.load.loader import load_model, num_bytes
from dovetail_kernels.cpu.library import ISA_VARIABLE, library, missing_reason
from dovetail_kernels.cpu.recipe import BFLOAT16_ISAS
from dovetail_kernels.gemm.weight import quantize_int4, quantize_int8_groups
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import dequantized_model, found_logprobs, round_inputs, wanted_logprobs
from support.reference_products import per_group
from support.samples import sample_of

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 128, "intermediate_size": 192}
"""Several panels and groups a layer, and 192 inputs end within a group of 128."""

NEAR_TIE = 1e-4
"""Two float32 sums of the same terms in another order differ by less; so may the best token."""
EXACT = 1e-4
"""Float activations: both sides sum the same float32 products, logits are about 10 at most."""
NUM_PROMPTS, NEW_TOKENS = sample_of(100, 40), 24

ENGINE: dict[str, Any] = {
    "num_gpu_blocks_override": 256,
    "block_size": 16,
    "max_model_len": 96,
    "max_logprobs": -1,
    "use_tqdm_on_load": False,
}
Answer = list[tuple[int, list[float]]]
"""Per new token: its id, and the two best logprobs."""


def prompts(count: int, longest: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def greedy_answers(path: str) -> list[Answer]:
    asked = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2)
    with LLM(model=path, **ENGINE) as llm:
        is_native = llm.spec.run.attention.name == "native_cpu"
        assert is_native == (library() is not None)
        results = llm.generate(prompts(NUM_PROMPTS, 40), asked, use_tqdm=False)
    answers = []
    for result in results:
        assert result.error is None
        entries = result.outputs[0].logprobs or ()
        answers.append([(e.token_id, list(e.top_logprobs)) for e in entries])
    return answers


def answers_without_the_library(path: str) -> list[Answer]:
    parts = ("core", "plugins", "kernels", "tests")
    folders = os.pathsep.join(str(ROOT / part) for part in parts)
    env = os.environ | {ISA_VARIABLE: "none", "PYTHONPATH": folders}
    done = subprocess.run(
        [sys.executable, __file__, path], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[Answer] = json.loads(done.stdout.splitlines()[-1])
    return answers


def near_ties(ours: list[Answer], theirs: list[Answer]) -> int:
    """Return how many answers part at a near tie; every other difference fails."""
    parted = 0
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert len(one) == len(other) == NEW_TOKENS
        for place, ((token, best), (wanted, wanted_best)) in enumerate(
            zip(one, other, strict=True)
        ):
            where = f"prompt {number}, token {place}: {best} and {wanted_best}"
            assert best == pytest.approx(wanted_best, abs=NEAR_TIE), where
            if token != wanted:
                assert best[0] - best[1] <= NEAR_TIE, where
                parted += 1
                break
    return parted


@pytest.mark.e2e
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_greedy_answers_are_those_of_torch(architecture: str, tmp_path: Path) -> None:
    """The same tokens, unless the two best lie within NEAR_TIE: then the rest is not compared."""
    path = str(write_tiny_checkpoint(tmp_path / "model", architecture, **SIZES))
    parted = near_ties(greedy_answers(path), answers_without_the_library(path))
    assert parted <= 1, "near ties are rare among made-up weights"


BFLOAT16_ROUNDED, INT8_ROUNDED = 0.1, 0.3
"""Largest error of a logit, in deviations of all logits, that rounding activations may cause.

bfloat16 keeps 8 bits, a relative error of 2^-9 a product; int8 keeps 1/254 of the largest of 32
activations. Seven products in each of two layers add up; these weights were seen to make 0.044 and
0.07 to 0.12 of it, and the bounds are twice that and more.
"""
WORDS_ROUNDED = 2e-3
"""The same of integers of 16 bits, which AVX2 multiplies by weights of 8."""
MEDIAN = 1e-5
"""Against transformers that rounds the inputs of its linear layers alike: most logits agree as
float32 sums do (1e-6 was seen), the others are those where an activation at the edge between two
steps fell the other way."""


def round_to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def as_stored(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight


def as_int8(name: str, weight: torch.Tensor) -> torch.Tensor:
    return quantize_int8_groups(weight, 128).dequantize()


def as_int4(name: str, weight: torch.Tensor, *, group: int, symmetric: bool) -> torch.Tensor:
    return quantize_int4(weight, group, is_symmetric=symmetric).dequantize()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a checkpoint that stores each 16-bit type."""
    import transformers

    root = tmp_path_factory.mktemp("stored")
    found = {}
    for dtype in ("bfloat16", "float16"):
        path = write_tiny_checkpoint(root / dtype, "Qwen3ForCausalLM", **SIZES)
        wide = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        wide.save_pretrained(path)
        found[dtype] = path
    return found


def differences(
    path: Path,
    quantization: str,
    options: dict[str, Any],
    meant: Callable[[str, torch.Tensor], torch.Tensor],
    rounding: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, float]:
    """Return every logprob's distance from transformers', and the deviation of its logits."""
    asked = prompts(8, 40)
    reference = dequantized_model(path, meant)
    if rounding is not None:
        round_inputs(reference, rounding)
    wanted, deviation = wanted_logprobs(reference, asked)
    flags = {**ENGINE, "kv_cache_dtype": "float32", "quantization": quantization}
    with LLM(model=str(path), plugin_options={"quantization": options}, **flags) as llm:
        found = found_logprobs(llm, asked)
    return (found - wanted).abs(), deviation


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("bfloat16", {"activations": "float"}), ("float16", {})],
    ids=["bfloat16", "float16"],
)
def test_16_bit_weights_lose_nothing(
    folders: dict[str, Path], dtype: str, options: dict[str, Any]
) -> None:
    error, _ = differences(folders[dtype], "none", options, as_stored)
    assert error.max() <= EXACT


def test_activations_rounded_to_bfloat16(folders: dict[str, Path]) -> None:
    native = library()
    is_rounding = native is not None and native.isa in BFLOAT16_ISAS
    error, deviation = differences(folders["bfloat16"], "none", {}, as_stored)
    assert error.max() <= (BFLOAT16_ROUNDED * deviation if is_rounding else EXACT)
    rounding = round_to_bfloat16 if is_rounding else None
    error, _ = differences(folders["bfloat16"], "none", {}, as_stored, rounding)
    assert error.median() <= MEDIAN


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_weights_with_float_activations(
    folders: dict[str, Path], group: int, symmetric: bool
) -> None:
    options = {"group": group, "symmetric": symmetric, "activations": "float", "head": "int4"}
    meant = partial(as_int4, group=group, symmetric=symmetric)
    error, _ = differences(folders["bfloat16"], "int4-plain", options, meant)
    assert error.max() <= EXACT


def check_int8_activations(
    path: Path,
    quantization: str,
    options: dict[str, Any],
    meant: Callable[[str, torch.Tensor], torch.Tensor],
) -> None:
    error, deviation = differences(path, quantization, options, meant)
    assert error.max() <= INT8_ROUNDED * deviation
    native = library()
    if native is not None and native.isa == "avx2" and quantization == "int8":
        assert error.max() <= WORDS_ROUNDED * deviation
        return
    error, _ = differences(path, quantization, options, meant, per_group)
    assert error.median() <= MEDIAN


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_int8_weights(folders: dict[str, Path], dtype: str) -> None:
    check_int8_activations(folders[dtype], "int8", {}, as_int8)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zeros"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_weights_with_int8_activations(
    folders: dict[str, Path], group: int, symmetric: bool
) -> None:
    options = {"group": group, "symmetric": symmetric, "head": "int4"}
    meant = partial(as_int4, group=group, symmetric=symmetric)
    check_int8_activations(folders["bfloat16"], "int4-plain", options, meant)


@pytest.mark.parametrize(
    ("quantization", "options"),
    [
        ("none", {}),
        ("int8", {}),
        ("int4-plain", {"symmetric": False}),
        ("int4", {}),
        ("int4", {"activations": "float", "head": "none"}),
    ],
    ids=["bfloat16", "int8", "int4-plain", "int4", "int4-float"],
)
def test_company_changes_no_bit(
    folders: dict[str, Path], quantization: str, options: dict[str, Any]
) -> None:
    """Logprobs are equal, not close: alone, and among others that come in chunks."""
    asked = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=4)
    flags = {**ENGINE, "quantization": quantization, "plugin_options": {"quantization": options}}
    flags |= {"max_num_batched_tokens": 48, "enable_prefix_caching": False}
    with LLM(model=str(folders["bfloat16"]), **flags) as llm:
        together = llm.generate(prompts(24, 40), asked, use_tqdm=False)
        for prompt, crowded in list(zip(prompts(24, 40), together, strict=True))[::3]:
            (alone,) = llm.generate([prompt], asked, use_tqdm=False)
            assert alone.outputs[0].logprobs == crowded.outputs[0].logprobs


SLACK = 1.15
"""Padding of panels, alignment, tables of positions."""
BIG = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


def needed_bytes(model: torch.nn.Module, bits: dict[str, float], vectors: dict[str, int]) -> int:
    """Return what transformers' model needs: bits per weight of its layers, bytes per output."""
    total = 0
    for name, module in model.named_modules():
        for weight in module.parameters(recurse=False):
            if not isinstance(module, torch.nn.Linear):
                total += weight.numel() * (2 if weight.dim() == 2 else 4)
                continue
            kind = "lm_head" if name == "lm_head" else "layer"
            total += int(weight.numel() * bits[kind] / 8) + weight.shape[0] * vectors[kind]
    return total


def living_bytes() -> int:
    """Return the bytes of all dense tensors that anything in this process still holds."""
    gc.collect()
    storages = {
        held.untyped_storage().data_ptr(): held.untyped_storage().nbytes()
        for held in gc.get_objects()
        if issubclass(type(held), torch.Tensor) and held.layout == torch.strided
    }
    return sum(storages.values())


@pytest.mark.parametrize(
    ("quantization", "bits", "vectors"),
    [
        ("none", {"layer": 16, "lm_head": 16}, {"layer": 0, "lm_head": 0}),
        ("int8", {"layer": 8, "lm_head": 8}, {"layer": 4, "lm_head": 4}),
        ("int4-plain", {"layer": 4 + 16 / 64, "lm_head": 8}, {"layer": 0, "lm_head": 4}),
    ],
    ids=["none", "int8", "int4"],
)
def test_no_second_copy_stays_in_memory(
    quantization: str, bits: dict[str, float], vectors: dict[str, int], tmp_path: Path
) -> None:
    import transformers

    path = write_tiny_checkpoint(tmp_path / "model", "Qwen3ForCausalLM", **BIG)
    wide = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16")
    wide.save_pretrained(path)
    needed = needed_bytes(wide, bits, vectors)
    fields = {"model": str(path), "quantization": quantization, "max_model_len": 16}
    run = resolve(Config.from_fields(fields)).run
    before = living_bytes()
    loaded = load_model(run, torch.device("cpu"))
    assert needed <= num_bytes(loaded.module) <= SLACK * needed
    assert living_bytes() - before <= SLACK * needed


if __name__ == "__main__":
    print(json.dumps(greedy_answers(sys.argv[1])))
