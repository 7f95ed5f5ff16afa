"""Models whose layers run as Triton kernels give the logits that torch gives.

Each side is a process of its own: whether kernels are interpreted is decided at the start, and the
native library is off in both. Run as a script with a checkpoint folder it prints its logprobs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail_kernels.cpu.library import ISA_VARIABLE
from dovetail_kernels.gpu import VARIABLE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.samples import sample_of

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
"""More than one group an output, and 192 inputs end within a group of 128."""
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 5, "num_experts_per_tok": 2}
FLOAT, INT8 = {"activations": "float"}, {"activations": "int8"}
METHODS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "Qwen3ForCausalLM": [
        ("int8", INT8),
        ("int4", {}),
        ("int4-plain", {"symmetric": False, "head": "int4"}),
        ("fp8", FLOAT),
        ("bitsandbytes", {}),
        ("int8", {}),
        ("int4", INT8),
    ][: sample_of(7, 4)],
    "Qwen3MoeForCausalLM": [("int8", INT8), ("int4", {}), ("none", {}), ("int8", {})][
        : sample_of(4, 1)
    ],
}
"""What kernels are asked for. Where that is nothing, torch is asked for float activations: kernels
leave them as they are, which on a CPU is not the default of integers."""
SAME = 2e-4
"""Both sides add the same float32 products, in another order."""
STEPS = 0.2
"""Kernels round activations with a scale a row where int8 is asked for, torch leaves them as they
are: the largest distance of a logprob was 0.141."""
PROMPT = [5, 9, 17, 3, 40, 41]


def logprobs(path: str, method: str, options: dict[str, Any]) -> list[list[float]]:
    """Return the logprobs of a prompt's tokens and of two more."""
    from dovetail import LLM, SamplingParams

    asked = SamplingParams(
        temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=4, prompt_logprobs=4
    )
    with LLM(
        model=path, quantization=method, plugin_options={"quantization": options}, dtype="float32",
        num_gpu_blocks_override=32, block_size=16, max_model_len=32, max_logprobs=8,
        use_tqdm_on_load=False,
    ) as llm:  # fmt: skip
        (result,) = llm.generate([PROMPT], asked, use_tqdm=False)
    assert result.error is None
    entries = [*(result.prompt_logprobs or ()), *(result.outputs[0].logprobs or ())]
    return [list(entry.top_logprobs) for entry in entries if entry is not None]


def told(paths: dict[str, Path], *, interpreted: bool) -> dict[str, dict[str, Any]]:
    """Return architecture -> what the process said that ran all of them."""
    parts = ("core", "plugins", "kernels", "tests")
    folders = os.pathsep.join(str(ROOT / part) for part in parts)
    env = os.environ | {
        ISA_VARIABLE: "none", "PYTHONPATH": folders, "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    env |= {VARIABLE: "1"} if interpreted else {}
    words = [word for name, path in paths.items() for word in (str(path), name)]
    done = subprocess.run(
        [sys.executable, __file__, *words], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()[-len(paths) :]
    return {name: json.loads(line) for name, line in zip(paths, lines, strict=True)}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what kernels gave and what torch gave, by architecture."""
    pytest.importorskip("triton")
    paths = {}
    for name in METHODS:
        fields = SIZES | (EXPERTS if "Moe" in name else {})
        paths[name] = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / name, name, **fields)
    return told(paths, interpreted=True), told(paths, interpreted=False)


@pytest.mark.e2e
@pytest.mark.parametrize("architecture", list(METHODS))
def test_logits_are_those_of_torch(
    architecture: str, both: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    ours, theirs = (one[architecture] for one in both)
    assert ours["kernels"] > 0
    assert theirs["kernels"] == 0
    for number, (method, options) in enumerate(METHODS[architecture]):
        bound = STEPS if options.get("activations") == "int8" else SAME
        for one, other in zip(ours["found"][number], theirs["found"][number], strict=True):
            assert one == pytest.approx(other, abs=bound), (method, options)


def main(words: list[str]) -> None:
    """Print a line an architecture: the logprobs by every method, how many products were kernels'.
    Words are a folder and an architecture, in turn."""
    from dovetail_kernels.gemm.gpu import GpuPacked
    from dovetail_kernels.gpu import interprets

    calls = 0
    launch = GpuPacked._launch

    def counted(*args: Any) -> None:
        nonlocal calls
        calls += 1
        launch(*args)

    GpuPacked._launch = counted  # type: ignore[method-assign]
    unasked = {} if interprets() else FLOAT
    for path, architecture in zip(words[::2], words[1::2], strict=True):
        calls, found = 0, []
        for method, options in METHODS[architecture]:
            found.append(logprobs(path, method, {**unasked, **options}))
        print(json.dumps({"kernels": calls, "found": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
