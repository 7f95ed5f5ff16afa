"""The sampler with Triton kernels against the sampler in torch operations, and its small parts.

Run as a script with vocabularies, each with a number of tokens that kernels hold, it compares both,
step after step: whether kernels are interpreted is decided when a process starts. With a vocabulary
alone it compiles the kernels with penalties, which no case of the op has.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.sampling import logprobs
from dovetail.sampling.sampler import NOT_FINITE, Draws, Sampler
from dovetail_kernels.cpu.library import ISA_VARIABLE, library
from dovetail_kernels.gpu import VARIABLE
from dovetail_kernels.gpu.offline import absent_gpu
from dovetail_kernels.sample.device import FIELD_NAMES, SamplingSettings, draw
from dovetail_kernels.sample.native import Tables
from dovetail_kernels.sample.penalties import Penalties
from dovetail_kernels.sample.seen import SeenTokens

ROOT = Path(__file__).resolve().parents[3]
WISHES = [
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=5, frequency_penalty=0.5, logprobs=0),
    SamplingParams(temperature=2.0, top_p=0.9, repetition_penalty=1.3),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.8, min_p=0.01, logprobs=-1),
    SamplingParams(temperature=1.0, min_p=0.1, logits_processors={"favour": {}}, logprobs=2),
    SamplingParams(temperature=0.0, presence_penalty=0.7),
    SamplingParams(temperature=1.0, logits_processors={"shave": {}}),
]
ROWS = len(WISHES)


class Favour(LogitsProcessor):
    """Adds 1 to token 3 of every row that names it; as a filter, which kernels do not know, forbids
    token 0 where it is not the best."""

    info = Info(summary="test processor")

    def __init__(self, name: str, stage: str) -> None:
        super().__init__(NoOptions(), 0)
        self.name, self.stage = name, stage  # type: ignore[misc]

    def wants(self, params: SamplingParams) -> bool:  # type: ignore[override]
        return self.name in params.logits_processors

    def add_row(self, tokens: RowTokens) -> None: ...

    def remove_row(self, row: int) -> None: ...

    def apply(self, logits: torch.Tensor, rows: list[tuple[int, int]]) -> None:
        for index, _ in rows:
            if self.stage == "bias":
                logits[index, 3] += 1.0
            elif logits[index, 0] < 0.0:
                logits[index, 0] = -math.inf


def sampler(*, uses_kernels: bool) -> Sampler:
    stages = {"favour": "bias", "shave": "filter"}
    processors = {name: Favour(name, stage) for name, stage in stages.items()}
    made = Sampler(ROWS, processors, uses_kernels=uses_kernels)
    for row in range(ROWS):
        add_row(made, row)
    return made


def add_row(made: Sampler, row: int) -> None:
    tokens = RowTokens(row=row, params=WISHES[row], prompt_ids=[1, 2, 3], output_ids=[2, 4, 4])
    made.add_row(tokens, seed=row * 77)


def check_same(one: Draws, other: Draws) -> None:
    assert one.token_ids == other.token_ids
    assert one.faults == other.faults and one.logprobs.keys() == other.logprobs.keys()
    for i, told in one.logprobs.items():
        wanted = other.logprobs[i]
        assert (told.token_id, told.rank, told.top_ids) == (
            wanted.token_id, wanted.rank, wanted.top_ids
        )  # fmt: skip
        values = np.array([told.logprob, *told.top_logprobs])
        assert np.abs(values - [wanted.logprob, *wanted.top_logprobs]).max() < 1e-9


def compare(vocab: int) -> None:
    """Draw with both, the kernels a step ahead of what is read. Raises: AssertionError"""
    kernels, plain = (sampler(uses_kernels=uses) for uses in (True, False))
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    waiting = []
    for position in range(5):
        # The row with a filter has torch do a step: it must know what kernels counted, and they it.
        rows = rng.permutation(ROWS - (position != 2))[: rng.integers(5, ROWS)]
        rows = np.append(rows[rows != ROWS - 1], ROWS - 1) if position == 2 else rows
        positions = np.full(len(rows), position)
        logits = torch.randn(len(rows), vocab, generator=generator) * 3
        if position == 1:
            logits.round_()  # ties
        if position == 3:
            logits[0, 7], logits[1] = math.nan, -math.inf
        begun = kernels.begin(logits.clone(), rows, positions, logits.clone)
        waiting.append((begun, plain.sample(logits.clone(), rows, positions, logits.clone)))
        if position % 2 == 0:
            for pending, wanted in waiting:
                drawn = pending.collect()
                check_same(drawn, wanted)
                sound = [i for i in range(len(pending.tokens)) if i not in drawn.faults]
                assert pending.tokens[sound].tolist() == [drawn.token_ids[i] for i in sound]
            waiting = []


def check_heirs() -> None:
    """A row's fault is not its heir's, nor is what the row had counted."""
    kernels, plain = (sampler(uses_kernels=uses) for uses in (True, False))
    rows, positions = np.array([2, 3]), np.zeros(2, dtype=np.int64)
    bad, good = torch.full((2, 50), math.nan), torch.randn(2, 50)
    pending = kernels.begin(bad, rows, positions, bad.clone)
    for made in (kernels, plain):
        add_row(made, 2)
    assert pending.collect().faults == {0: NOT_FINITE, 1: NOT_FINITE}
    after = kernels.sample(good.clone(), rows, positions, good.clone)
    assert after.faults == {1: NOT_FINITE}
    assert (
        after.token_ids[0] == plain.sample(good.clone(), rows, positions, good.clone).token_ids[0]
    )


def compile_with_penalties(vocab: int) -> None:
    """Compile what a step of penalised rows launches. Raises: AssertionError"""
    wanted = SamplingSettings(
        params=torch.zeros(2, len(FIELD_NAMES), dtype=torch.float64),
        is_random=True,
        has_bounds=True,
        has_top_p=True,
        seen=torch.zeros(2, vocab, dtype=torch.int32),
    )
    with absent_gpu(90) as gpu:
        draw(torch.zeros(2, vocab, dtype=torch.bfloat16), wanted)
    assert [one.name for one in gpu.found] == ["_scan", "_weigh", "_search", "_draw"]
    assert not any(one.stack_bytes for one in gpu.found), gpu.found


def in_a_process(interprets: str, *arguments: str) -> None:
    pytest.importorskip("triton")
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("core", "plugins", "kernels"))
    changes = {
        VARIABLE: interprets,
        ISA_VARIABLE: "none",
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | changes, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_draw_the_same_also_where_they_cannot_hold_what_may_count() -> None:
    in_a_process("1", "60", "4096", "300", "8")


@pytest.mark.slow
def test_kernels_with_penalties_compile_for_a_gpu_that_is_not_here() -> None:
    in_a_process("0", "151936")


@pytest.mark.skipif(library() is None, reason="there is no native library to compare with")
def test_logprobs_are_those_of_the_native_kernels() -> None:
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(1)).mul_(2).round_()
    logits[1, 5] = -math.inf
    tokens, num_top = [4, 5, 69], [0, 3, -1]
    for tells_logits in (False, True):
        told = logprobs.tell(logits, torch.tensor(tokens), num_top)
        found = logprobs.read(told, told.numbers.numpy(), tokens, tells_logits=tells_logits)
        wanted = logprobs.token_logprobs(logits, tokens, num_top, tells_logits=tells_logits)
        check_same(
            Draws(token_ids=tokens, logprobs=dict(enumerate(found))),
            Draws(token_ids=tokens, logprobs=dict(enumerate(wanted))),
        )


def test_lines_of_seen_tokens() -> None:
    """Filled at first use, counted by kernels, told to the host when torch is to penalise."""
    penalties = Penalties(Tables(12))
    seen, cpu = SeenTokens(penalties, 12), torch.device("cpu")
    for row in range(0, 12, 2):
        params = SamplingParams(repetition_penalty=1.2)
        penalties.add_row(row, params, prompt_ids=[1, row], output_ids=[row, row, 3])
    lines = seen.lines(np.arange(3), 20, cpu)
    lines = seen.lines(np.arange(12), 20, cpu)  # the table grows and keeps what it holds
    assert (lines[1::2] == -1).all() and len(set(lines[::2].tolist())) == 6
    table = seen.table
    assert table is not None
    for row in range(4, 12, 2):
        wanted = torch.zeros(20, dtype=torch.int32)
        wanted[1], wanted[row], wanted[3] = 1, 3, 2
        assert torch.equal(table[int(lines[row])], wanted)
    seen.note(6, [6, 9, 9])
    assert table[int(lines[6]), [6, 9, 3]].tolist() == [4, 3, 2]
    seen.tell(4, 11)
    seen.settle([4])
    ids, counts = penalties.seen(4)
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {1: 0, 3: 1, 4: 2, 11: 1}
    again = seen.lines(np.array([4]), 20, cpu)
    assert table[int(again[0]), [1, 3, 4, 11]].tolist() == [1, 2, 3, 2]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        compile_with_penalties(int(sys.argv[1]))
    else:
        from dovetail_kernels.sample import search

        for words in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
            vocabulary, search.FOUND = map(int, words)
            compare(vocabulary)
            check_heirs()
