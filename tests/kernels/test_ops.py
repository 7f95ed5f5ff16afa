"""Ops: pick, check and timing tell the truth; a definition equals a plainer one.

test_native_library.py runs every implementation, the definition too, in every case.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import dovetail_kernels
from dovetail_kernels import all_ops, check, load_op
from dovetail_kernels.__main__ import main
from dovetail_kernels.check import check_case, time_case
from dovetail_kernels.op import Case, Implementation, Op

CPU = torch.device("cpu")


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_cases_are_told_apart(op: Op) -> None:
    names = [(case.name, case.dtype) for case in op.cases()]
    assert len(set(names)) == len(names)


def doubling(name: str = "twice", *, rank: int = 0, factor: float = 2.0, **fields) -> Op:
    def build(device: torch.device) -> dict[str, torch.Tensor]:
        return {"x": torch.arange(4.0, device=device)}

    implementation = Implementation(
        name=name,
        function=lambda x: x * factor,
        devices=("cpu",),
        dtypes=(torch.float32,),
        rank=rank,
        **fields,
    )
    return Op(
        name="double",
        summary="2 x",
        reference=lambda x: x + x,
        cases=lambda: [Case(name="four", dtype=torch.float32, build=build)],
        implementations=[implementation],
    )


def test_check_catches_wrong_numbers() -> None:
    wrong = doubling(factor=2.01)
    assert check_case(doubling(), doubling().cases()[0], "twice", CPU) is None
    assert "off by" in str(check_case(wrong, wrong.cases()[0], "twice", CPU))


def test_check_catches_a_changed_argument() -> None:
    op = doubling()
    spoiling = Implementation(
        name="spoils", function=lambda x: x.mul_(2), devices=("cpu",), dtypes=(torch.float32,)
    )
    op.implementations.append(spoiling)
    assert check_case(op, op.cases()[0], "spoils", CPU) == "argument x was changed"


def test_pick_takes_what_fits() -> None:
    op = doubling()
    assert op.pick("cpu", torch.float32) is op.implementations[0].function
    assert op.pick("cpu", torch.float64) is op.reference
    assert op.pick("cpu", torch.float32, name="reference") is op.reference
    missing = doubling(unavailable_reason=lambda: "no compiler")
    assert missing.pick("cpu", torch.float32) is missing.reference
    with pytest.raises(LookupError, match="no compiler"):
        missing.pick("cpu", torch.float32, name="twice")
    with pytest.raises(LookupError, match="there are reference, twice"):
        op.pick("cpu", torch.float32, name="thrice")


def test_time_is_positive() -> None:
    op = doubling()
    assert time_case(op, op.cases()[0], "twice", CPU) > 0


@pytest.mark.parametrize("command", ["test", "perf", "support"])
def test_command(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MIN_TIME_S", 0.001)
    monkeypatch.setattr(check, "CACHE_BYTES", 0)
    assert main([command, "--op", "rms_norm", "--device", "cpu"]) == 0
    assert "reference" in capsys.readouterr().out or command == "test"


def test_unknown_op_is_named() -> None:
    with pytest.raises(KeyError, match="no op 'gemv'"):
        load_op("gemv")


def test_paged_attention_equals_plain_attention() -> None:
    """The definition itself, against torch's attention over an unpaged row."""
    op = load_op("paged_attention")
    case = next(c for c in op.cases() if c.name == "prefill_plain_H4_K2")
    arguments = case.build(CPU)
    first = int(arguments["query_start"][1])
    blocks = arguments["block_table"][0, :3].long()
    k, v = arguments["cache"][:, blocks].flatten(1, 2)[:, :first].transpose(1, 2)
    q = arguments["q"][:first].transpose(0, 1)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, scale=arguments["scale"], enable_gqa=True
    )
    found = op.reference(**arguments)[:first]
    assert torch.allclose(found, wanted[0].transpose(0, 1), atol=1e-5)


def test_knows_nothing_of_dovetail() -> None:
    for path in Path(dovetail_kernels.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] in ("dovetail", "dovetail_plugins")]
