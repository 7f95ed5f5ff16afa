"""Recorded native calls: the same numbers again, new inputs in the old places, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.cpu.program import NotRecordable, Pool, by_torch, record, refuse_recording
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def packed(format: str, outputs: int, size: int) -> Packed:
    return Packed(make_weight(format, outputs, size))


def chain(x: torch.Tensor) -> torch.Tensor:
    up, down = packed("int8", 96, 64), packed("bfloat16", 64, 96)
    for _ in range(3):
        x = down(up(x).unflatten(1, (4, 24)).flatten(1), None, x)
    return x


def test_a_program_follows_its_inputs() -> None:
    x = torch.randn(3, 64)
    chain(x)
    program = record(lambda: chain(x), Pool(), owner=x)
    assert len(program) == 6
    for _ in range(3):
        x.copy_(torch.randn(3, 64))
        assert torch.equal(program.run(), chain(x))


def test_programs_share_the_memory_that_is_free() -> None:
    pool = Pool()
    x = torch.randn(4, 64)
    wanted = chain(x)
    first = record(lambda: chain(x), pool, owner=x)
    held = pool.num_bytes
    second = record(lambda: chain(x), pool, owner=x)
    assert pool.num_bytes <= held + 2 * x.nbytes + 256, "only the second's output is new"
    assert torch.equal(first.run(), wanted)
    assert torch.equal(second.run(), wanted)
    assert torch.equal(first.output, wanted), "the second run left the first's output alone"


def test_what_torch_computes_is_refused() -> None:
    x = torch.randn(2, 64)
    weight = Packed(make_weight("float32", 64, 64))
    with pytest.raises(NotRecordable, match="torch's add"):
        record(lambda: weight(x) + 1, Pool())
    with pytest.raises(NotRecordable, match="no native call"):
        record(lambda: x.view(-1), Pool())
    assert len(record(lambda: weight(x), Pool(), owner=x)) == 1, "a refusal leaves nothing behind"


def test_torch_repeats_what_depends_on_tensors_alone() -> None:
    x = torch.randn(3, 64)
    weight = packed("bfloat16", 64, 96)

    def bounded(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return y.clamp(-1, 1), y.abs().argmax(dim=-1, keepdim=True)

    def step() -> torch.Tensor:
        up = packed("int8", 96, 64)(x).unflatten(1, (4, 24)).transpose(1, 2)  # with gaps
        clamped, places = by_torch(bounded, up)
        (weighed,) = by_torch(lambda y, at: (y + at,), clamped, places)
        return weight(weighed.reshape(3, 96), None, x)

    pool = Pool()
    program = record(step, pool, owner=x)
    assert len(program) == 4
    second = record(step, pool, owner=x)
    for _ in range(3):
        x.copy_(torch.randn(3, 64))
        assert torch.equal(program.run(), step())
        assert torch.equal(second.run(), step())


def test_an_error_of_torch_comes_through() -> None:
    x = torch.randn(2, 64)
    weight = Packed(make_weight("float32", 64, 64))
    is_broken = False

    def unsteady(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if is_broken:
            raise ValueError("no such number")
        return (y + 1,)

    program = record(lambda: by_torch(unsteady, weight(x))[0], Pool(), owner=x)
    is_broken = True
    with pytest.raises(ValueError, match="no such number"):
        program.run()


def test_what_no_recorder_sees_refuses_by_itself() -> None:
    x = torch.randn(2, 64)
    weight = Packed(make_weight("float32", 64, 64))

    def unseen() -> torch.Tensor:
        refuse_recording("another library changes it")
        return weight(x)

    with pytest.raises(NotRecordable, match="another library changes it"):
        record(unseen, Pool())
    assert torch.equal(unseen(), weight(x)), "outside a recording nothing is refused"
