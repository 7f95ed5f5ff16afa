"""dovetail and llama.cpp on the very same GGUF files: decoding, prefill, a batch, and the logits.

    python -m benchmarks.peers.gguf_files --venvs DIR [--threads 1] [--rounds 5] FILE.gguf...
    python -m benchmarks.peers.gguf_files --venvs DIR --logits FILE.gguf...

Both engines are loaded and take turns at each measure: `decode` (one sequence, 64 + 32), `batch8`
(8 x (64 + 16)), `prefill` (512 + 1). The ratio is llama.cpp's median time over dovetail's. --peer
picks llama.cpp's build: `llamacpp`, for this machine, or `xllamacpp`, a wheel for AVX2. With
--checkpoint transformers takes part, on the model in bfloat16 that the files were made of. With
--logits (which `llamacpp` alone tells), one prompt of 24 tokens goes through both, and the distance
of their logprobs is printed in parts of the range of the logits.
How to install llama.cpp: README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.catalog import Engine
from benchmarks.peers.engine_process import EngineProcess, environment
from benchmarks.peers.isa import hold_to_avx2, processor

MEASURES = {"decode": (1, 64, 32), "batch8": (8, 64, 16), "prefill": (1, 512, 1)}
LIMIT_S = 300.0
TOKEN_IDS = [400 + 7 * number for number in range(24)]

THEIRS = """
import ctypes, json, sys
import llama_cpp
import numpy as np
path, threads, ids = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
model = llama_cpp.Llama(path, n_ctx=64, n_threads=threads, logits_all=True, verbose=False)
model.eval(ids)
np.save(sys.argv[4], model.scores[: len(ids)])
"""
OURS = """
import json, sys
import numpy as np
from dovetail import LLM, SamplingParams
path, threads, ids = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
flags = {"max_model_len": 64, "max_logprobs": -1, "use_tqdm_on_load": False}
llm = LLM(model=path, num_threads=threads, **flags)
asked = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1, logprobs=-1)
(result,) = llm.generate([ids], asked, use_tqdm=False)
rows = []
for entry in (*result.prompt_logprobs[1:], *result.outputs[0].logprobs):
    row = np.full(llm.spec.run.model.vocab_size, np.nan, np.float32)
    row[list(entry.top_ids)] = entry.top_logprobs
    rows.append(row)
np.save(sys.argv[4], np.stack(rows))
"""


def engines(threads: int, peer: str, *, has_checkpoint: bool = False) -> list[Engine]:
    """Return the two, or the three."""
    flags = ["--num-threads", str(threads)]
    theirs = Engine(name="llama.cpp", driver=peer, width=4, bits=4.5, venv=peer)
    ours = Engine(
        name="dovetail", driver="dovetail", width=4, bits=4.5, venv=None, options={"flags": flags}
    )
    plain = Engine(
        name="transformers",
        driver="transformers",
        width=16,
        bits=16,
        venv=None,
        options={"dtype": "bfloat16"},
    )
    return [ours, theirs, plain] if has_checkpoint else [ours, theirs]


def compare(file: Path, asked: argparse.Namespace) -> None:
    """Print the ratios of one file."""
    running: dict[str, EngineProcess] = {}
    try:
        for engine in engines(asked.threads, asked.peer, has_checkpoint=bool(asked.checkpoint)):
            is_plain = engine.driver == "transformers"
            running[engine.name] = EngineProcess(
                engine,
                python=engine.python(asked.venvs, sys.executable),
                model=asked.checkpoint if is_plain else file,
                checkpoint=file.parent,
                num_threads=asked.threads,
                log=Path(tempfile.gettempdir(), f"gguf_{engine.driver}.log"),
            )
        said = [one_measure(running, measure, asked.rounds) for measure in MEASURES]
        print(f"{file.name:<24}{'   '.join(said)}", flush=True)
    finally:
        for process in running.values():
            process.stop()


def one_measure(running: dict[str, EngineProcess], measure: str, rounds: int) -> str:
    """Return the times of a measure, in turns, and their ratio."""
    ours, *others = measured(running, measure, rounds).values()
    told = [f"{theirs:.2f} ms: {theirs / ours:.2f}x" for theirs in others]
    return f"{measure} {ours:.2f} and {', '.join(told)}"


def measured(running: dict[str, EngineProcess], measure: str, rounds: int) -> dict[str, float]:
    """Return each engine's median milliseconds of a measure, which they take in turns."""
    sequences, num_prompt, num_new = MEASURES[measure]
    prompts = [[400 + 7 * i + j for j in range(num_prompt)] for i in range(sequences)]
    times_s: dict[str, list[float]] = {name: [] for name in running}
    for process in running.values():
        shape = {"sequences": sequences, "tokens_each": num_prompt + num_new + 8}
        process.ask({"do": "prepare", **shape}, LIMIT_S)
    for _ in range(rounds):
        for name, process in running.items():
            run = {"do": "run", "prompts": prompts, "num_new": num_new}
            answer = process.ask(run, LIMIT_S)
            times_s[name] += answer["steps_s"] or [answer["wall_s"]]
    return {name: statistics.median(times) * 1e3 for name, times in times_s.items()}


def distance(file: Path, asked: argparse.Namespace) -> None:
    """Print how far the two engines' logprobs are apart, and how often they agree on the best."""
    import numpy as np

    found = []
    for engine, script in zip(engines(asked.threads, asked.peer), (OURS, THEIRS), strict=True):
        python = engine.python(asked.venvs, sys.executable)
        with tempfile.NamedTemporaryFile(suffix=".npy") as out:
            told = [str(file), str(asked.threads), json.dumps(TOKEN_IDS), out.name]
            subprocess.run(
                [python, "-c", script, *told], check=True, env=environment(engine, asked.threads)
            )
            found.append(np.load(out.name))
    ours, theirs = found
    span = theirs.max() - theirs.min()
    theirs = theirs - theirs.max(1, keepdims=True)
    theirs = theirs - np.log(np.exp(theirs).sum(1, keepdims=True))
    apart = np.abs(ours - theirs) / span
    agree = (ours.argmax(1) == theirs.argmax(1)).mean()
    print(
        f"{file.name:<24}largest {apart.max():.4f}, mean {apart.mean():.5f} of the range; "
        f"same best token {agree:.2f}",
        flush=True,
    )


def main() -> int:
    """Compare every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--peer", default="llamacpp", choices=("llamacpp", "xllamacpp"))
    parser.add_argument("--avx2", action="store_true", help="hold both engines to AVX2")
    parser.add_argument("--checkpoint", type=Path, help="folder that transformers loads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--logits", action="store_true")
    asked = parser.parse_args()
    if asked.logits and asked.peer != "llamacpp":
        parser.error("--logits needs --peer llamacpp: the wheel does not tell a prompt's logits")
    if asked.avx2:
        hold = hold_to_avx2(processor(), Path(tempfile.mkdtemp()))
        if hold.is_needed and asked.peer == "llamacpp":
            parser.error("--avx2 needs --peer xllamacpp: llamacpp is built for this machine")
        os.environ.update(hold.environment)
    for file in asked.files:
        (distance if asked.logits else compare)(file, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
