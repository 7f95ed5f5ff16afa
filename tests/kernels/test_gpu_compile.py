"""The products compile for a device that is not here, and keep their numbers in registers.

The interpreter forgives what the compiler does not: a name that changes its type in a loop,
instructions that the assembler does not know. Each kernel is compiled for compute capability 9.0
with the arguments that a launch would give it; the assembler comes with Triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail_kernels.gemm import gpu
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gpu import interprets

triton = pytest.importorskip("triton")
if interprets():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from dovetail_kernels.gemm import triton as products  # noqa: E402
from dovetail_kernels.moe import triton as experts  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
}


class Compiled:
    """A kernel that is compiled when it is launched, and never run."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.made: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *given: Any, **named: Any) -> None:
        options = {n: named.pop(n) for n in ("num_warps", "num_stages") if n in named}
        bound = dict(zip(self.kernel.arg_names, given, strict=False)) | named
        signature, constants, facts = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            value = bound[parameter.name]
            is_tensor = isinstance(value, torch.Tensor)
            if parameter.is_constexpr or value is None or (not is_tensor and value == 1):
                signature[parameter.name], constants[(place,)] = "constexpr", value
                continue
            signature[parameter.name] = f"*{TYPES[value.dtype]}" if is_tensor else "i32"
            if is_tensor or value % 16 == 0:
                facts[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, facts)
        self.made.append(triton.compile(source, target=TARGET, options=options))


class Kernels:
    """A module whose kernels are compiled in place of being run."""

    def __init__(self, module: Any) -> None:
        self.tl = module.tl
        self.product, self.finish, self.round_rows = (
            Compiled(getattr(module, name)) for name in ("product", "finish", "round_rows")
        )


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    made = Kernels(products)
    monkeypatch.setattr(gpu, "_kernels", lambda: made)
    return made


def instructions(compiled: Any) -> tuple[int, set[str]]:
    """Return the bytes of a thread's stack, and the names of a kernel's instructions."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    stack = re.search(r"STACK:(\d+)", told)
    assert stack is not None
    return int(stack[1]), set(re.findall(r"\b(HGMMA|IGMMA|QGMMA|HMMA|IMMA|LDL|STL)\b", told))


@pytest.mark.parametrize(
    ("format", "options", "rows", "wanted"),
    [
        ("int4", {"group": 128, "is_symmetric": False}, 1, "HGMMA"),
        ("int4", {"group": 32, "run": 256}, 128, "HGMMA"),
        ("int4_int8", {"group": 128}, 128, "IGMMA"),
        ("int8", {}, 16, "IGMMA"),
        ("table4", {"group": 16}, 16, "HGMMA"),
        ("float8", {"group": 128}, 128, "QGMMA"),
    ],
)
def test_products_of_a_hopper_device(
    kernels: Kernels, format: str, options: dict[str, Any], rows: int, wanted: str
) -> None:
    weight = make_weight(format, 256, 1024, **options)
    packed = gpu.pack(weight, is_gated=rows > 64, rounds_activations=format == "float8")
    packed(torch.zeros(rows, 1024, dtype=torch.bfloat16), activation="silu")
    stack, names = instructions(kernels.product.made[0])
    assert stack == 0
    assert names == {wanted}


def test_experts(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_count", "_plan", "_place", "_add_up"):
        monkeypatch.setattr(experts, name, Compiled(getattr(experts, name)))
    first = gpu.stack([gpu.pack(make_weight("int4", 128, 128, group=64), is_gated=True)] * 4)
    second = gpu.stack([gpu.pack(make_weight("int4", 128, 64, group=64))] * 4)
    assert first is not None
    assert second is not None
    picked = torch.zeros(5, 2)
    x = torch.zeros(5, 128, dtype=torch.bfloat16)
    experts.run(x, first, second, picked, picked.long(), "silu")
    assert [instructions(made) for made in kernels.product.made] == [(0, {"HGMMA"})] * 2
