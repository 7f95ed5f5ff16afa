"""What a GPU gives, and how much of it dovetail uses: one command from a bare checkout.

    PYTHONPATH=core:plugins:kernels python benchmarks/gpu.py --out DIR [--only qwen3] [--quick]

Every section runs in a process of its own, so one that fails, or takes the device with it, leaves
the others: `limits` (copy bandwidth, matrix rate), `ops` (every kernel's cases beside those),
`same` (graphs, eager, ahead and in turn give the same tokens; so does a CPU in float32), `qwen3`
and `llama` (models of those shapes with random weights: start-up, decode at 1, 64 and 256 rows,
prefill of 8192 tokens, split of the step time) and `throughput` (256 requests at once, and the same
through transformers' continuous batching). Results: DIR/gpu.json, a table in DIR/gpu.md and on
stdout.

Without a GPU every section can be tried, in a few minutes; what it measures then says nothing:

    ... python benchmarks/gpu.py --out DIR --device cpu --shape tiny --quick

`--shape tiny` puts one tiny model in the place of the two. Where the CPU kernels have not been
compiled yet, the first section that needs them does it, which its time includes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_report import machine, table
from gpu_shapes import SHAPES, TINY

Result = dict[str, Any]
SECTIONS = ("limits", "ops", "same", "qwen3", "llama", "throughput")
TINY_SECTIONS = ("limits", "ops", "same", "tiny", "throughput")
SECTION_LIMIT_S = 580.0
CACHE_BYTES = 192 << 20
"""Arguments of an op are rotated until this much has been touched: more than any cache holds."""
MAX_COPIES = 64
WEIGHT_BYTES = {"": 2.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5 + 2 / 128}
"""What a weight of a layer takes; int4 has a scale of two bytes for 128."""
PROMPT_TOKENS, NEW_TOKENS = 128, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is to do, the same in every section."""

    device: str
    quick: bool
    shape: str
    ops: tuple[str, ...]
    out: Path
    quantization: str = ""

    @property
    def dtype(self) -> str:
        """Return the number type of models."""
        return "bfloat16" if self.device == "cuda" else "float32"


# ---- what the machine gives


def seconds_of(run: Callable[[], object], device: str, *, repeats: int = 5) -> float:
    """Return the median seconds of a call, by events on a GPU."""
    run()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
        else:
            start_s = time.perf_counter()
            run()
            times.append(time.perf_counter() - start_s)
    return statistics.median(times)


def limits(asked: Asked) -> Result:
    """Return the copy bandwidth, read and written bytes counted, and the matrix rate."""
    is_gpu = asked.device == "cuda"
    source = torch.ones(1 << (30 if is_gpu else 24), dtype=torch.uint8, device=asked.device)
    target = torch.empty_like(source)
    copy_s = seconds_of(lambda: target.copy_(source), asked.device, repeats=20)
    size = 8192 if is_gpu else 512
    dtype = torch.bfloat16 if is_gpu else torch.float32
    left, right = (torch.randn(size, size, device=asked.device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    multiply_s = seconds_of(lambda: torch.mm(left, right, out=product), asked.device, repeats=10)
    return {
        "copy_gb_per_s": 2 * source.nbytes / copy_s / 1e9,
        "matrix_tflop_per_s": 2 * size**3 / multiply_s / 1e12,
        "matrix_dtype": str(dtype).removeprefix("torch."),
    }


# ---- kernels


def call_seconds(function: Callable[..., Any], calls: list[dict[str, Any]], device: str) -> float:
    """Return the seconds of one call over arguments in turn; captured as a graph on a GPU, so that
    what is timed is the device and not the launches."""
    for arguments in calls[:2]:
        function(**arguments)

    def run_all() -> None:
        for arguments in calls:
            function(**arguments)

    if device != "cuda":
        return seconds_of(run_all, device, repeats=3) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run_all()
    except RuntimeError:
        torch.cuda.synchronize()
        return seconds_of(run_all, device) / len(calls)
    return seconds_of(graph.replay, device) / len(calls)


def ops(asked: Asked) -> Result:
    """Return, per op and case, the device's time and the shares of bandwidth and matrix rate."""
    from dovetail_kernels import all_ops, load_op

    device, found = torch.device(asked.device), limits(asked)
    chosen = [load_op(name) for name in asked.ops] if asked.ops else all_ops()
    rows: list[Result] = []
    for op in chosen:
        cases = list(op.perf_cases())
        for case in cases[:3] if asked.quick else cases:
            for name in ("reference", *(i.name for i in op.implementations)):
                row: Result = {"op": op.name, "case": case.name, "implementation": name}
                row["dtype"] = str(case.dtype).removeprefix("torch.")
                try:
                    row |= op_row(op, case, name, device, found)
                except LookupError:
                    continue  # it does not run here
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                rows.append(row)
        keep("ops", {**found, "rows": rows}, asked)
    return {**found, "rows": rows}


def op_row(op: Any, case: Any, name: str, device: torch.device, found: Result) -> Result:
    """Return one line of `ops`. Raises: LookupError where the implementation does not run."""
    function = op.pick(device.type, case.dtype, name=name)
    copies = min(MAX_COPIES, 1 + CACHE_BYTES // max(1, case.moved_bytes))
    calls = [op.prepare(name, case.build(device)) for _ in range(copies)]
    seconds = call_seconds(function, calls, device.type)
    return {
        "us": seconds * 1e6,
        "gb_per_s": case.moved_bytes / seconds / 1e9,
        "tflop_per_s": case.flops / seconds / 1e12,
        "of_copy": case.moved_bytes / seconds / 1e9 / found["copy_gb_per_s"],
        "of_matrix": case.flops / seconds / 1e12 / found["matrix_tflop_per_s"],
    }


# ---- models


@contextmanager
def folder_of(shape: str) -> Iterator[str]:
    """Give a folder with the config.json of a shape."""
    with tempfile.TemporaryDirectory(prefix=f"{shape}-") as name:
        config = SHAPES[shape] | {"eos_token_id": 0, "dtype": "bfloat16"}
        (Path(name) / "config.json").write_text(json.dumps(config))
        yield name


@contextmanager
def engine(folder: str, asked: Asked, **flags: Any) -> Iterator[Any]:
    """Give an offline engine whose steps are recorded in `llm.steps`: (end, StepStats)."""
    from dovetail import LLM

    given = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": asked.device,
        "dtype": asked.dtype,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "seed": 0,
    }
    if asked.quantization:
        given["quantization"] = asked.quantization
    if Path(folder).name.startswith("tiny"):
        given["num_gpu_blocks_override"] = 4096  # a whole GPU's would be millions
    with LLM(model=folder, **(given | flags)) as llm:
        llm.steps = []
        core = llm._engine.core
        plain = core.step

        def step() -> Any:
            output = plain()
            if output.stats is not None and output.stats.step_tokens:
                llm.steps.append((time.perf_counter(), output.stats))
            return output

        core.step = step
        yield llm


def prompts_of(count: int, tokens: int, vocab: int, *, seed: int = 0) -> list[list[int]]:
    """Return prompts of random token ids."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab, (count, tokens), generator=draw)
    return [[int(t) for t in row] for row in ids.tolist()]


def generate(llm: Any, prompts: list[list[int]], new_tokens: int, **sampling: Any) -> list[Any]:
    """Return the token ids drawn after each prompt, greedily unless told otherwise."""
    from dovetail import SamplingParams

    wishes = {"temperature": 0.0, "max_tokens": new_tokens, "ignore_eos": True} | sampling
    outputs = llm.generate(prompts, SamplingParams(**wishes), use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def weights_of(shape: Result) -> tuple[int, int]:
    """Return the numbers in the matrices of all layers, and in the logits' matrix."""
    hidden, size = shape["hidden_size"], shape["head_dim"]
    heads = shape["num_attention_heads"] * size
    kv_heads = shape["num_key_value_heads"] * size
    layer = hidden * (2 * heads + 2 * kv_heads + 3 * shape["intermediate_size"])
    return layer * shape["num_hidden_layers"], hidden * shape["vocab_size"]


def decode(llm: Any, asked: Asked, rows: int, found: Result, shape: Result) -> Result:
    """Return what steps of `rows` rows took, and their share of what the bytes alone would."""
    new_tokens = 24 if asked.quick else NEW_TOKENS
    llm.steps.clear()
    generate(llm, prompts_of(rows, PROMPT_TOKENS, shape["vocab_size"]), new_tokens)
    steps = [(end_s, stats) for end_s, stats in llm.steps if stats.step_tokens == rows]
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(steps)]
    step_s = statistics.median(gaps)
    told = [stats for _, stats in steps[2:]]
    device_s, exposed_s, hidden_s = (
        statistics.median(getattr(stats, name) for stats in told)
        for name in ("device_s", "exposed_s", "hidden_s")
    )
    number_bytes = 2 if asked.dtype == "bfloat16" else 4
    kept = 2 * shape["num_key_value_heads"] * shape["head_dim"] * shape["num_hidden_layers"]
    cached = rows * (PROMPT_TOKENS + new_tokens / 2) * kept
    layers, head = weights_of(shape)
    weight_bytes = WEIGHT_BYTES[asked.quantization] * number_bytes / 2
    moved = layers * weight_bytes + (head + cached) * number_bytes
    floor_s = moved / found["copy_gb_per_s"] / 1e9
    return {
        "rows": rows,
        "tokens_per_s": rows / step_s,
        "step_ms": step_s * 1e3,
        "of_floor": floor_s / step_s,
        "device_ms": device_s * 1e3,
        "hidden_host_ms": hidden_s * 1e3,
        "exposed_host_ms": exposed_s * 1e3,
        "exposed_share": exposed_s / max(1e-9, device_s + exposed_s),
    }


def prefill(llm: Any, asked: Asked, tokens: int, found: Result, shape: Result) -> Result:
    """Return the rate of a step that computes one prompt of `tokens` tokens."""
    seconds = []
    for repeat in range(2 if asked.quick else 4):
        llm.steps.clear()
        generate(llm, prompts_of(1, tokens, shape["vocab_size"], seed=repeat), 1)
        seconds += [s.device_s for _, s in llm.steps if s.step_tokens == tokens]
    flops = 2 * weights_of(shape)[0] * tokens
    heads = shape["num_attention_heads"] * shape["head_dim"]
    flops += 2 * shape["num_hidden_layers"] * heads * tokens**2
    rate = flops / statistics.median(seconds[1:]) / 1e12
    return {
        "prompt_tokens": tokens,
        "ms": statistics.median(seconds[1:]) * 1e3,
        "tflop_per_s": rate,
        "of_matrix": rate / found["matrix_tflop_per_s"],
    }


def model(asked: Asked, name: str) -> Result:
    """Return start-up, decode and prefill of one shape; a part that fails leaves the others."""
    shape, found = SHAPES[name], limits(asked)
    is_tiny = name == "tiny"
    tokens = 256 if is_tiny else 8192
    result: Result = {**found, "model": name, "dtype": asked.dtype}
    start_s = time.perf_counter()
    flags = {"max_num_batched_tokens": tokens, "max_model_len": tokens + 256}
    flags |= {"max_num_seqs": 8 if is_tiny else 256}
    with folder_of(name) as folder, engine(folder, asked, **flags) as llm:
        result["start_s"] = time.perf_counter() - start_s
        runner = llm._engine.core._executor.worker.runner
        if runner.passes.graphs is not None:
            result["graphs"] = runner.passes.graphs.num_graphs
            result["capture_s"] = runner.passes.graphs.capture_s
            result["no_graphs"] = runner.passes.graphs.reason
        rows = (1, 8) if is_tiny else (1, 64, 256)
        parts = [(f"decode {n}", lambda n=n: decode(llm, asked, n, found, shape)) for n in rows]
        parts.append(("prefill", lambda: prefill(llm, asked, tokens, found, shape)))
        for part, run in parts:
            try:
                result[part] = run()
            except Exception as error:
                result[part] = {"error": f"{type(error).__name__}: {error}"}
            keep(name, result, asked)
    return result


# ---- the same tokens, and the throughput of others


def same(asked: Asked) -> Result:
    """Return whether all ways to run a step draw the same tokens, random ones and greedy ones."""
    ways = {
        "graphs, ahead": {},
        "graphs, in turn": {"async_scheduling": False},
        "eager, ahead": {"enforce_eager": True},
        "eager, in turn": {"enforce_eager": True, "async_scheduling": False},
    }
    vocab = SHAPES[asked.shape]["vocab_size"]
    prompts = [p[: 3 + 5 * i] for i, p in enumerate(prompts_of(12, 80, vocab))]
    drawn: dict[str, list[Any]] = {}
    with folder_of(asked.shape) as folder:
        for way, flags in ways.items():
            with engine(folder, asked, max_num_seqs=8, max_model_len=512, **flags) as llm:
                drawn[way] = generate(llm, prompts, 16)
                drawn[way] += generate(llm, prompts, 16, temperature=0.8, top_p=0.9, seed=5)
    first = next(iter(drawn))
    result: Result = {
        f"{first} = {way}": sum(a == b for a, b in zip(drawn[first], drawn[way], strict=True))
        / len(drawn[way])
        for way in drawn
        if way != first
    }
    result["greedy float32 = CPU"] = equal_share(asked)
    return result


def equal_share(asked: Asked) -> float:
    """Return the share of 50 prompts that a tiny model in float32 answers here as on a CPU."""
    prompts = [p[: 1 + i] for i, p in enumerate(prompts_of(50, 60, TINY["vocab_size"]))]
    answers = []
    with folder_of("tiny") as folder:
        for device in (asked.device, "cpu"):
            flags = {"device": device, "dtype": "float32", "max_model_len": 256}
            with engine(folder, asked, **flags) as llm:
                answers.append(generate(llm, prompts, 16))
    return sum(a == b for a, b in zip(*answers, strict=True)) / len(prompts)


def throughput(asked: Asked) -> Result:
    """Return output tokens/s of 256 requests at once, here and through transformers."""
    shape = SHAPES[asked.shape]
    is_tiny, count = asked.shape == "tiny", 256
    if asked.quick or is_tiny:
        count = 8 if is_tiny else 64
    new_tokens = 8 if is_tiny else NEW_TOKENS
    prompts = prompts_of(count, PROMPT_TOKENS, shape["vocab_size"])
    result: Result = {"model": asked.shape, "requests": count}
    with folder_of(asked.shape) as folder:
        with engine(folder, asked, max_num_seqs=count, max_model_len=1024) as llm:
            generate(llm, prompts[:4], 4)
            start_s = time.perf_counter()
            generate(llm, prompts, new_tokens)
            result["tokens_per_s"] = count * new_tokens / (time.perf_counter() - start_s)
        keep("throughput", result, asked)
        try:
            result["transformers_tokens_per_s"] = others(folder, asked, prompts, new_tokens)
            result["ratio"] = result["tokens_per_s"] / result["transformers_tokens_per_s"]
        except Exception as error:
            result["transformers_error"] = f"{type(error).__name__}: {error}"
    return result


def others(folder: str, asked: Asked, prompts: list[list[int]], new_tokens: int) -> float:
    """Return output tokens/s of transformers' continuous batching, from the first request that it
    takes up to the last token: neither its start nor its captures count."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device(asked.device):
        made = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, asked.dtype)
        )
    made.eval()
    wishes = transformers.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    room = None
    if asked.device == "cpu":  # else it takes nine tenths of the memory and fills it: minutes
        room = transformers.ContinuousBatchingConfig(
            num_blocks=2 * len(prompts), max_batch_tokens=4 * PROMPT_TOKENS
        )
    outputs = made.generate_batch(
        prompts, generation_config=wishes, continuous_batching_config=room
    ).values()
    start_s = min(one.lifespan[0] for one in outputs)
    end_s = max(one.lifespan[1] for one in outputs)
    return sum(len(one.generated_tokens) for one in outputs) / (end_s - start_s)


# ---- sections


def keep(section: str, result: Result, asked: Asked) -> None:
    """Write what a section has found so far: it stays when the rest takes too long."""
    (asked.out / f"{section}.json").write_text(json.dumps(result, indent=1))


def run_section(name: str, asked: Asked) -> Result:
    """Return a section's result, or what stopped it."""
    runs: dict[str, Callable[[], Result]] = {
        "limits": lambda: limits(asked),
        "ops": lambda: ops(asked),
        "same": lambda: same(asked),
        "throughput": lambda: throughput(asked),
    }
    runs |= {shape: lambda shape=shape: model(asked, shape) for shape in SHAPES}  # type: ignore[misc]
    try:
        return runs[name]()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def in_a_process(name: str, words: list[str], out: Path) -> Result:
    """Run a section in a process of its own; return its result or how it ended."""
    path = out / f"{name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, __file__, *words, "--section", name]
    try:
        ended = subprocess.run(
            command, timeout=SECTION_LIMIT_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        fault: Result = {"error": f"took longer than {SECTION_LIMIT_S:.0f} s"}
    else:
        fault = {"error": f"exit status {ended.returncode}", "trace": ended.stderr[-2000:]}
        fault = fault if ended.returncode else {}
    found: Result = json.loads(path.read_text()) if path.exists() else {}
    return found | fault


def main(words: list[str] | None = None) -> int:
    """Run the sections; return 1 when one ended with an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", action="append", choices=(*SECTIONS, "tiny"))
    parser.add_argument("--quick", action="store_true", help="fewer cases and repetitions")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="qwen3", choices=SHAPES, help="of same and throughput")
    parser.add_argument("--op", action="append", default=[], help="an op's name; may be repeated")
    parser.add_argument(
        "--quantization", default="", choices=WEIGHT_BYTES, help="of the models' weights"
    )
    parser.add_argument("--section", help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if words is None else words)
    chosen = parser.parse_args(given)
    chosen.out.mkdir(parents=True, exist_ok=True)
    asked = Asked(
        device=chosen.device,
        quick=chosen.quick,
        shape=chosen.shape,
        ops=tuple(chosen.op),
        out=chosen.out,
        quantization=chosen.quantization,
    )
    if chosen.section:
        keep(chosen.section, run_section(chosen.section, asked), asked)
        return 0
    results: Result = {"machine": machine(chosen.device)}
    for name in chosen.only or (TINY_SECTIONS if chosen.shape == "tiny" else SECTIONS):
        start_s = time.perf_counter()
        results[name] = in_a_process(name, given, chosen.out)
        results[name]["section_s"] = time.perf_counter() - start_s
        (chosen.out / "gpu.json").write_text(json.dumps(results, indent=1))
        (chosen.out / "gpu.md").write_text(table(results))
        print(table({name: results[name]}), flush=True)
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
