"""llama.cpp's own logits on the windows of benchmarks.quality, its speed and its memory.

Runs in a virtual environment with `xllamacpp` and `numpy`: `python -m benchmarks.quality_llamacpp
JOB.json`. The wheel's library is used through its C API (llama.h), read from the extension module:
https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality_figures import Comparison, Reference, figures

CONTEXT = 1024


class Params(ctypes.Structure):
    """Parameters as the library hands them out, larger than any of its versions needs.

    Passed by value on the stack, of which the library reads what it knows. A context's begin with
    its length, 32 bits.
    """

    _fields_ = [("words", ctypes.c_uint64 * 64)]


class Batch(ctypes.Structure):
    """llama_batch: tokens with positions and sequences."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


POINTERS = (
    "llama_model_load_from_file",
    "llama_init_from_model",
    "llama_model_get_vocab",
    "llama_get_memory",
)


def library() -> ctypes.CDLL:
    """Return the library inside xllamacpp's extension module."""
    import xllamacpp.xllamacpp as module

    llama = ctypes.CDLL(module.__file__)
    for name in POINTERS:
        getattr(llama, name).restype = ctypes.c_void_p
    llama.llama_model_default_params.restype = Params
    llama.llama_context_default_params.restype = Params
    llama.llama_batch_init.restype = Batch
    llama.llama_model_size.restype = ctypes.c_uint64
    llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    llama.llama_print_system_info.restype = ctypes.c_char_p
    return llama


SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Engine:
    """One model and a context of CONTEXT tokens with the library's default settings."""

    def __init__(self, path: str, num_threads: int) -> None:
        self.llama = library()
        self._silent = SILENT(lambda level, text, data: None)  # called as long as the library lives
        self.llama.llama_log_set(self._silent, None)
        self.llama.llama_backend_init()
        model = self.llama.llama_model_load_from_file(
            path.encode(), self.llama.llama_model_default_params()
        )
        if not model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = self.llama.llama_context_default_params()
        params.words[0] = params.words[0] >> 32 << 32 | CONTEXT
        self.model = ctypes.c_void_p(model)
        self.context = ctypes.c_void_p(self.llama.llama_init_from_model(self.model, params))
        assert self.llama.llama_n_ctx(self.context) == CONTEXT, "the parameters have another layout"
        self.llama.llama_set_n_threads(self.context, num_threads, num_threads)
        self.vocab = ctypes.c_void_p(self.llama.llama_model_get_vocab(self.model))
        self.vocab_size = self.llama.llama_vocab_n_tokens(self.vocab)
        self.batch = self.llama.llama_batch_init(CONTEXT, 0, 1)

    def clear(self) -> None:
        """Forget all tokens."""
        memory = ctypes.c_void_p(self.llama.llama_get_memory(self.context))
        self.llama.llama_memory_clear(memory, ctypes.c_bool(True))

    def run(self, tokens: Sequence[int], start: int, first_told: int) -> np.ndarray:
        """Compute tokens from position `start` on; return the logits after those from
        `first_told` on. Shapes: -> [R, V], gone with the next call"""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, start + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = row >= first_told
        status = self.llama.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode answered {status}")
        logits = self.llama.llama_get_logits_ith(self.context, first_told)
        return np.ctypeslib.as_array(logits, (len(tokens) - first_told, self.vocab_size))

    def encode(self, text: str, *, adds_special: bool) -> list[int]:
        """Return a text's token ids."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        special = (ctypes.c_bool(adds_special), ctypes.c_bool(False))
        count = self.llama.llama_tokenize(self.vocab, data, len(data), ids, len(ids), *special)
        return list(ids[:count])

    def num_bytes(self) -> int:
        """Return the bytes of the weights."""
        return int(self.llama.llama_model_size(self.model))


def speed(engine: Engine, job: dict[str, Any]) -> dict[str, float]:
    """Return tokens/s of a prompt, the better of two, and of one sequence that goes on."""
    prompt, num_new = job["speed_prompt"], job["speed_new"]
    times_s = []
    for _ in range(2):
        engine.clear()
        start_s = time.perf_counter()
        best = int(engine.run(prompt, 0, len(prompt) - 1).argmax())
        times_s.append(time.perf_counter() - start_s)
    start_s = time.perf_counter()
    for step in range(num_new):
        best = int(engine.run([best], len(prompt) + step, 0).argmax())
    return {
        "prefill_tok_s": len(prompt) / min(times_s),
        "decode_tok_s": num_new / (time.perf_counter() - start_s),
    }


def score(engine: Engine, job: dict[str, Any], reference: Reference) -> dict[str, Any]:
    """Return the figures of whole windows, and of their ends decoded token by token."""
    whole, decoded = Comparison(reference), Comparison(reference)
    for window, first in zip(job["windows"], reference.starts.tolist(), strict=False):
        engine.clear()
        whole.add(engine.run(window[:-1], 0, 0), first)
    for window, first in zip(job["windows"], reference.starts.tolist(), strict=False):
        for at, logits in _decoded(engine, window, job["decode_from"], job["decode_tokens"]):
            decoded.add(logits, first + at)
    return {**figures(whole.found), "decoding": figures(decoded.found)}


def _decoded(
    engine: Engine, window: Sequence[int], start: int, count: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield positions and the logits after them, computed one at a time behind a prompt."""
    engine.clear()
    engine.run(window[:start], 0, start - 1)
    for at in range(start, start + count):
        yield at, engine.run([window[at]], at, 0)


def main() -> int:
    """Measure as the job says; write one JSON object."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    engine = Engine(job["model"], job["threads"])
    own = [
        engine.encode(text, adds_special=job["has_bos"])[: len(window)]
        for text, window in zip(job["texts"], job["windows"], strict=True)
    ]
    row = speed(engine, job)
    row["weights_mib"] = engine.num_bytes() / 2**20
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    reference = Reference(Path(job["reference"]), job["windows"], job["vocab_size"])
    row |= score(engine, job, reference)
    row["same_ids"] = own == job["windows"]
    row["machine"] = engine.llama.llama_print_system_info().decode().strip()
    Path(job["out"]).write_text(json.dumps(row), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
