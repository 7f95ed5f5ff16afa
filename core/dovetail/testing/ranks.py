"""Two ranks on this machine: what a divided model answers, for the clause that it equals the whole.

`python -m dovetail.testing.ranks RANK ADDRESS OUT` reads JSON [[folder, model name], ...] from
standard input; rank 0 writes the logits of TOKENS to OUT, one list entry each (or an error text).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dovetail.interfaces.spec import RankSpec
from dovetail.parallel.groups import join, leave
from dovetail.testing.harness import PagedModel, load_model

NUM_RANKS = 2
TIMEOUT_S = 240
TOKENS = [(11 * i * i + 5 * i) % 300 for i in range(13)]


def divided_logits(models: Sequence[tuple[str, str]], folder: Path) -> list[torch.Tensor | str]:
    """Return, for each (checkpoint, model name), logits [T, V] of two ranks, or the error."""
    out, address = folder / "logits.pt", f"file://{folder}/meeting"
    paths = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        env["GLOO_SOCKET_IFNAME"] = "lo"  # else gloo asks what the host's name resolves to
    command = [sys.executable, "-m", "dovetail.testing.ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), address, str(out)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(list(models)).encode())
            process.stdin.close()
            process.stdin = None
        errors = [process.communicate(timeout=TIMEOUT_S)[1].decode() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if not out.is_file():
        raise RuntimeError("".join(errors))
    answers: list[torch.Tensor | str] = torch.load(out, weights_only=True)
    return answers


def _main(number: int, address: str, out: str) -> None:
    rank = RankSpec(rank=number, world_size=NUM_RANKS, tensor_rank=number, tensor_size=NUM_RANKS)
    join(rank, backend="gloo", address=address)
    answers = [_answer(folder, name, rank) for folder, name in json.load(sys.stdin)]
    if number == 0:
        torch.save(answers, out)
    leave()


def _answer(folder: str, name: str, rank: RankSpec) -> torch.Tensor | str:
    try:
        model = PagedModel(load_model(folder, model_name=name, rank=rank))
        return model.forward([(0, TOKENS)])[0].clone()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
