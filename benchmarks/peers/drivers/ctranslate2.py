"""CTranslate2's Generator: one static batch; it has neither continuous batching nor a server."""

from __future__ import annotations

import time
from collections.abc import Sequence

import ctranslate2
from tokenizers import Tokenizer

from benchmarks.peers.drivers.trace import Setting, Trace


class Driver:
    """One generator. CTranslate2 takes tokens as text, so ids are turned into names first."""

    def __init__(self, setting: Setting) -> None:
        """Load. `options`: compute_type."""
        tokenizer = Tokenizer.from_file(str(setting.checkpoint / "tokenizer.json"))
        self.names = {index: token for token, index in tokenizer.get_vocab().items()}
        self.generator = ctranslate2.Generator(
            str(setting.model),
            device="cpu",
            compute_type=setting.options.get("compute_type", "default"),
            intra_threads=setting.num_threads,
            inter_threads=1,
        )

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Warm up on a small batch; nothing depends on the shape."""
        self.run([[5] * min(tokens_each, 32)] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Generate the batch; the first sequence's callback marks the steps."""
        ends_s: list[float] = []

        def mark(step: ctranslate2.GenerationStepResult) -> bool:
            if step.batch_id == 0:
                ends_s.append(time.perf_counter())
            return False

        start_s = time.perf_counter()
        results = self.generator.generate_batch(
            [[self.names[index] for index in prompt] for prompt in prompts],
            max_length=num_new,
            min_length=num_new,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            end_token=[],
            callback=mark,
        )
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=ends_s,
            num_tokens=[len(result.sequences_ids[0]) for result in results],
        )

    def facts(self) -> dict[str, str]:
        """Return the version and compute type; CT2_VERBOSE=1 logs the instruction set."""
        types = sorted(ctranslate2.get_supported_compute_types("cpu"))
        return {
            "version": ctranslate2.__version__,
            "compute_type": self.generator.compute_type,
            "supported": " ".join(types),
        }
