"""llama.cpp through the C API that `llama-cpp-python` wraps, built for the machine it runs on.

One llama_decode a step for all sequences, greedy by the largest logit: the bare engine, without
llama.cpp's own sampler chain and server around it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.peers.drivers.trace import Setting, Trace

BATCH_TOKENS = 2048

Entry = tuple[int, int, int, bool]
"""Token id, position, sequence, whether its logits are wanted."""


class Driver:
    """One model; its context is rebuilt when the number or length of the sequences changes."""

    def __init__(self, setting: Setting) -> None:
        """Load the weights."""
        self.num_threads = setting.num_threads
        # Kept on self: the library calls it as long as it lives.
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(setting.model).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp could not load {setting.model}")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self.context: Any = None
        self.shape = (0, 0)

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Rebuild the context for this shape and warm it up."""
        shape = (sequences, -(-(tokens_each + 1) // 256) * 256)
        if shape == self.shape:
            return
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = shape[0] * shape[1]
        params.n_seq_max = sequences
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = self.num_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.shape = shape
        self.run([[5] * 32] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Prefill all prompts, then decode all sequences together."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        start_s = time.perf_counter()
        drawn = self._prefill(prompts)
        ends_s = [time.perf_counter()]
        for step in range(num_new - 1):
            entries = [(drawn[i], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)]
            drawn = self._decode(entries)
            ends_s.append(time.perf_counter())
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=ends_s,
            num_tokens=[num_new] * len(prompts),
        )

    def _prefill(self, prompts: Sequence[list[int]]) -> list[int]:
        """Return the first token of every sequence; whole prompts share a batch where they fit."""
        drawn: list[int] = []
        entries: list[Entry] = []
        for index, prompt in enumerate(prompts):
            if entries and len(entries) + len(prompt) > BATCH_TOKENS:
                drawn += self._decode(entries)
                entries = []
            last = len(prompt) - 1
            entries += [(token, at, index, at == last) for at, token in enumerate(prompt)]
        return drawn + self._decode(entries)

    def _decode(self, entries: Sequence[Entry]) -> list[int]:
        """Run one batch; return the likeliest token of every entry that wanted logits."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for row, (token, at, sequence, wants_logits) in enumerate(entries):
            batch.token[row] = token
            batch.pos[row] = at
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wants_logits
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode answered {status}")
        wanted = [row for row, entry in enumerate(entries) if entry[3]]
        return [self._likeliest(row) for row in wanted]

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def facts(self) -> dict[str, str]:
        """Return the binding's version and llama.cpp's own line about the machine."""
        line = llama_cpp.llama_print_system_info().decode()
        return {"version": f"llama-cpp-python {llama_cpp.__version__}", "isa": line}
