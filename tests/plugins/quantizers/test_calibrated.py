"""Calibrated methods do what they are for: answers change less than by rounding to nearest.

The demo model, text of its own kind that it was not calibrated on, 4 bits in groups of 64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from dovetail import LLM
from dovetail.cli.main import main
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_plugins.quantization._int32 import unpack
from dovetail_plugins.quantize import report
from dovetail_plugins.quantizers._gptq import compensated
from dovetail_plugins.quantizers._rounding import even_steps, levels, meant, pack
from support.dequantized import found_logprobs

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "demo_model"))

import data
import rendering

NUM_TOKENS = 256
CALIBRATION_TOKENS = 1024


def text_of(seed: int, count: int) -> str:
    return "".join(
        rendering.render(sample["messages"], tools=sample["tools"])
        for sample in data.samples(seed, count)
    )


@pytest.fixture(scope="module")
def distances(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return method -> mean divergence of the next token's chances from the model's own."""
    from tokenizers import Tokenizer

    root = tmp_path_factory.mktemp("calibrated")
    (root / "text.txt").write_text(text_of(seed=4242, count=80))
    token_ids = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json")).encode(
        text_of(seed=999, count=20), add_special_tokens=False
    ).ids[:NUM_TOKENS]  # fmt: skip
    prompts = [token_ids[start : start + 256] for start in range(0, NUM_TOKENS, 256)]
    own = logprobs(DEMO_PATH, prompts)
    found = {}
    for method in ("int4", "gptq", "awq"):
        words = ["--group", "64", "--calibration", str(root / "text.txt")]
        words += ["--calibration-tokens", str(CALIBRATION_TOKENS)]
        out = root / method
        assert (
            main(["quantize", str(DEMO_PATH), "--method", method, "--out", str(out), *words]) == 0
        )
        changed = logprobs(out, prompts, quantization={"activations": "float"})
        found[method] = float((own.exp() * (own - changed)).sum(-1).mean())
    return found


def logprobs(model: Path, prompts: list[list[int]], **options: dict[str, str]) -> torch.Tensor:
    with LLM(model=str(model), num_gpu_blocks_override=64, max_model_len=320, max_logprobs=-1,
             use_tqdm_on_load=False, dtype="float32", kv_cache_dtype="float32",
             plugin_options=options) as llm:  # fmt: skip
        return found_logprobs(llm, prompts)


@pytest.mark.parametrize(("method", "share"), [("gptq", 0.8), ("awq", 0.9)])
def test_it_is_nearer_than_rounding(distances: dict[str, float], method: str, share: float) -> None:
    """On 7,905 tokens, calibrated on 16,384: gptq 0.44, awq 0.64 of the divergence of int4."""
    assert 0 < distances[method] < share * distances["int4"]


def test_gptq_equals_the_definition() -> None:
    """Against the method as it is written down: quantize an input, solve anew for those left.

    Frantar et al., equation 2, with the inverse computed afresh at every step in float64.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 16, generator=generator)
    x = torch.randn(200, 16, generator=generator) @ torch.randn(16, 16, generator=generator)
    gram = (x.T @ x) / len(x)
    steps = even_steps(weight, 8, bits=4, dtype=torch.float32)
    found = compensated(weight, gram, steps, bits=4, damping=0.01)
    assert torch.equal(found, by_definition(weight, gram, steps))


def by_definition(weight: torch.Tensor, gram: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    work, left = weight.double().clone(), torch.argsort(gram.diagonal(), descending=True).tolist()
    damped = gram.double() + 0.01 * gram.diagonal().mean().double() * torch.eye(len(gram))
    found = torch.zeros(weight.shape, dtype=torch.uint8)
    while left:
        first, inverse = left[0], torch.linalg.inv(damped[left][:, left])
        step = steps[:, first // 8].double()
        level = (work[:, first] / step).round().clamp(-8, 7)
        found[:, first] = (level + 8).to(torch.uint8)
        error = (work[:, first] - level * step) / inverse[0, 0]
        work[:, left] -= error.unsqueeze(1) * inverse[0]
        left = left[1:]
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_words_come_back(bits: int, axis: int) -> None:
    values = torch.randint(0, 1 << bits, (64, 96), generator=torch.Generator().manual_seed(1))
    assert torch.equal(unpack(pack(values, bits, axis=axis), bits, axis).long(), values)


def test_errors_of_outputs_are_those_of_the_layer() -> None:
    """The sums of inputs tell the same as the outputs themselves."""
    from dovetail.interfaces.quantizer import Inputs, Quantized

    generator = torch.Generator().manual_seed(2)
    weight, x = torch.randn(24, 64, generator=generator), torch.randn(50, 64, generator=generator)
    steps = even_steps(weight, 32, bits=4, dtype=torch.float32)
    done = Quantized(tensors={"weight": weight}, meant=meant(levels(weight, steps, bits=4), steps,
                                                            bits=4))  # fmt: skip
    inputs = Inputs(gram=x.T @ x / len(x), magnitude=x.abs().mean(0), num_tokens=len(x))
    found = report.error_of("layer", weight, done, inputs, len(x))
    outputs = x @ weight.T
    wanted = (x @ done.meant.T - outputs).norm() / outputs.norm()
    assert found.outputs == pytest.approx(float(wanted), rel=1e-3)
    assert found.weights == pytest.approx(float((done.meant - weight).norm() / weight.norm()))
