"""Two ranks on this machine, for the clause that a divided model's output equals the whole's.

Each rank is a child process whose boot message is a RankBoot; rank 0 writes the logits of TOKENS to
a file, one list entry (or an error text) for each model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from dovetail import registry
from dovetail.interfaces.data.spec import RankSpec
from dovetail.parallel.groups import join, leave
from dovetail.processes.process import Child, read_boot, spawn
from dovetail_testing.harness import PagedModel, load_model

NUM_RANKS = 2
TIMEOUT_S = 240
TOKENS = [(11 * i * i + 5 * i) % 300 for i in range(13)]


def odd_and_even(num_experts: int, num_ranks: int) -> list[range]:
    """Return experts dealt out to the ranks, the last rank's first: an ExpertPlacement."""
    return [range(rank, num_experts, num_ranks) for rank in reversed(range(num_ranks))]


ODD_AND_EVEN = f"{odd_and_even.__module__}:{odd_and_even.__name__}"


class RankModel(msgspec.Struct, frozen=True):
    """A checkpoint, the model plugin that runs it, and which rank holds which experts ("": each
    holds a part of every expert)."""

    path: str
    name: str
    expert_placement: str = ""


class RankBoot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message of a rank: what to run, its rendezvous address, and where to write."""

    models: tuple[RankModel, ...]
    rank: int
    address: str
    out: str


def divided_logits(models: Sequence[RankModel], folder: Path) -> list[torch.Tensor | str]:
    """Return, for each model, logits [T, V] of two ranks, or the error."""
    out, log = folder / "logits.pt", folder / "ranks.log"
    boots = [
        RankBoot(models=tuple(models), rank=rank, address=f"file://{folder}/meeting", out=str(out))
        for rank in range(NUM_RANKS)
    ]
    variables = {"OMP_NUM_THREADS": "1"}
    children: list[Child] = []
    with log.open("wb") as stream:
        try:
            for boot in boots:
                child = spawn(__name__, boot, stdout=stream, stderr=stream, variables=variables)
                children.append(child)
            _wait_all(children, time.monotonic() + TIMEOUT_S)
        finally:
            for child in children:
                child.end(0.0)
    if not out.is_file():
        raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))
    answers: list[torch.Tensor | str] = torch.load(out, weights_only=True)
    return answers


def _wait_all(children: Sequence[Child], deadline_s: float) -> None:
    """Wait until every rank has ended. Raises: TimeoutError"""
    for child in children:
        if child.wait(max(0.0, deadline_s - time.monotonic())) is None:
            raise TimeoutError(f"the ranks did not end within {TIMEOUT_S} s")


def main() -> int:
    """Answer as one rank; return the exit status."""
    boot = read_boot(RankBoot)
    number = boot.rank
    rank = RankSpec(rank=number, world_size=NUM_RANKS, tensor_rank=number, tensor_size=NUM_RANKS)
    join(rank, communicator=registry.choose("communicator", "gloo"), address=boot.address)
    answers = [_answer(model, rank) for model in boot.models]
    if number == 0:
        torch.save(answers, boot.out)
    leave()
    return 0


def _answer(task: RankModel, rank: RankSpec) -> torch.Tensor | str:
    try:
        placement = task.expert_placement
        model = PagedModel(
            load_model(task.path, model_name=task.name, rank=rank, expert_placement=placement)
        )
        return model.forward([(0, TOKENS)])[0].clone()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
