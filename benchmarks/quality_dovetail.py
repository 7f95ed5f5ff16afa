"""dovetail's own logits on the windows of benchmarks.quality, its speed and its memory.

`python -m benchmarks.quality_dovetail JOB.json` loads a model as `serve` does and reads the logits
where the engine itself has them: those of prompts as the runner makes logprobs of them, chunk by
chunk, those of decoding in a logits processor that makes the text's own token the one drawn.
Scheduler, runner, kernels, KV cache and drafting are the engine's.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.quality_figures import Comparison, Reference, figures
from dovetail import LLM
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

NAME = "benchmarks.quality_dovetail:Forced"
FLAGS = [
    *("--max-model-len", "1024"),
    *("--kv-cache-memory-bytes", str(256 << 20)),
    *("--logits-processors", NAME),
    "--no-use-tqdm-on-load",
]
"""Flags that every row gets: bounds of memory, and the processor that follows the text."""
Sink = Callable[["torch.Tensor"], None]


class Forced(LogitsProcessor):
    """Shows `sink` the logits of a row, then leaves only the next token of `text` possible."""

    info = Info(summary="draws the tokens of a text and shows the logits to a function")
    stage = "allow"
    sink: Sink | None = None
    text: Sequence[int] = ()

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether a text is being followed."""
        return cls.sink is not None

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's live tokens."""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Tell and force, row by row. Shapes: logits [S, V]. Mutates: logits"""
        assert type(self).sink is not None
        for index, row in rows:
            type(self).sink(logits[index : index + 1])
            token = self.text[len(self._rows[row].output_ids)]
            kept = logits[index, token].clone()
            logits[index] = float("-inf")
            logits[index, token] = kept


class SteppedLLM(LLM):
    """An LLM that notes when each of its steps ended."""

    ends_s: list[float]

    def _step(self, gatherers: Any, progress: Any) -> set[int]:
        ended = super()._step(gatherers, progress)
        self.ends_s.append(time.perf_counter())
        return ended

    def run(self, prompt: Sequence[int], num_new: int, **fields: Any) -> list[int]:
        """Return the greedy answer of one prompt, exactly as long as asked."""
        params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True, **fields)
        self.ends_s = []
        (result,) = self.generate([list(prompt)], params, use_tqdm=False)
        if result.error is not None:
            raise SystemExit(f"dovetail ended a request: {result.error}")
        return list(result.outputs[0].token_ids)


def loaded(model: str, flags: Sequence[str], num_threads: int) -> SteppedLLM:
    """Return a model with the flags of `serve`."""
    from dovetail.cli.parser import Parser
    from dovetail.config.parse.parse_config import parse_config
    from dovetail.config.resolve import resolve
    from dovetail_plugins.commands._serve_flags import add_serve_arguments

    parser = Parser(prog="serve", description="")
    add_serve_arguments(parser)
    told = parser.parse([model, *FLAGS, "--num-threads", str(num_threads), *flags])
    return SteppedLLM.from_spec(resolve(parse_config(told)))


def weights_bytes(llm: LLM) -> int:
    """Return the bytes of what the runner keeps of the model, each storage once."""
    runner = llm._engine.core._executor.worker.runner  # type: ignore[attr-defined]
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in runner.weights()}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def speed(llm: SteppedLLM, job: dict[str, Any]) -> dict[str, float]:
    """Return tokens/s of a prompt, the better of two, and of one sequence that goes on."""
    prompt, num_new = job["speed_prompt"], job["speed_new"]
    times_s = []
    for turn in range(2):
        # Its second token is another one each time: the prefix cache has nothing to give.
        fresh = [prompt[0], prompt[1] + turn, *prompt[2:]]
        start_s = time.perf_counter()
        llm.run(fresh, 1)
        times_s.append(time.perf_counter() - start_s)
    llm.run([prompt[0], prompt[1] + 2, *prompt[2:]], num_new + 1)
    decode_s = llm.ends_s[-1] - _first_token_s(llm, len(prompt))
    return {"prefill_tok_s": len(prompt) / min(times_s), "decode_tok_s": num_new / decode_s}


def _first_token_s(llm: SteppedLLM, num_prompt: int) -> float:
    """Return when the first token came: at the end of the last step with a part of the prompt."""
    most = llm.spec.schedule.max_step_tokens
    return llm.ends_s[-(-num_prompt // most) - 1]


@contextlib.contextmanager
def prompt_logits(sink: Sink) -> Iterator[None]:
    """Show `sink` the logits that the runner makes a prompt's logprobs of, in their order."""
    from dovetail.runner.endings import prompt_logprobs

    own = prompt_logprobs._chunks

    def shown(*args: Any) -> Iterator[tuple[torch.Tensor, np.ndarray]]:
        for logits, chunk in own(*args):
            sink(logits)
            yield logits, chunk

    prompt_logprobs._chunks = shown
    try:
        yield
    finally:
        prompt_logprobs._chunks = own


class Adder:
    """Hands logits to a comparison, position after position."""

    def __init__(self, comparison: Comparison, position: int) -> None:
        self.comparison = comparison
        self.position = position

    def __call__(self, logits: torch.Tensor) -> None:
        self.comparison.add(logits.float().cpu().numpy(), self.position)
        self.position += len(logits)


def score_prompts(llm: SteppedLLM, job: dict[str, Any], reference: Reference) -> dict[str, Any]:
    """Return the figures of whole windows, each a prompt."""
    whole = Comparison(reference)
    for window, first in zip(job["windows"], reference.starts.tolist(), strict=False):
        with prompt_logits(Adder(whole, first)):
            llm.run(window, 1, prompt_logprobs=0)
    assert whole.found["position"] == list(range(len(reference.tokens)))
    return figures(whole.found)


def score_decoding(llm: SteppedLLM, job: dict[str, Any], reference: Reference) -> dict[str, Any]:
    """Return the figures of parts of windows that are decoded token by token."""
    decoded, steps = Comparison(reference), 0
    start, count = job["decode_from"], job["decode_tokens"]
    for window, first in zip(job["windows"], reference.starts.tolist(), strict=False):
        Forced.text = window[start : start + count + 1]
        Forced.sink = Adder(decoded, first + start - 1)
        drawn = llm.run(window[:start], count + 1)
        assert drawn == list(Forced.text), "the text was not followed"
        steps += len(llm.ends_s) - -(-start // llm.spec.schedule.max_step_tokens)
        Forced.sink = None
    told = figures(decoded.found)
    return {**told, "tokens_per_step": count * len(job["windows"]) / steps}


def _machine() -> str:
    """Return the instruction set of the native kernels, and the best one of the machine."""
    from dovetail_kernels.cpu.library import library

    found = library()
    return "torch" if found is None else f"{found.isa} (the machine has {found.best_isa})"


def main() -> int:
    """Measure as the job says; write one JSON object."""
    import torch

    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    llm = loaded(job["model"], job["flags"], job["threads"])
    row: dict[str, Any] = speed(llm, job)
    row["weights_mib"] = weights_bytes(llm) / 2**20
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    reference = Reference(Path(job["reference"]), job["windows"], job["vocab_size"])
    row |= score_prompts(llm, job, reference)
    row["decoding"] = score_decoding(llm, job, reference)
    row["machine"] = _machine()
    Path(job["out"]).write_text(json.dumps(row), encoding="utf-8")
    llm.close()
    return 0


if __name__ == "__main__":
    # Imported under its own name: the engine loads the processor by that name.
    from benchmarks import quality_dovetail

    sys.exit(quality_dovetail.main())
