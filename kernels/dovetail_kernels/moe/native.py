"""moe on the native CPU library: the packed matrices of a layer's experts, one call a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from dovetail_kernels.cpu.implementation import call_layer, native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.cpu.row_stride import row_stride
from dovetail_kernels.gemm.native import CODES, Packed
from dovetail_kernels.gemm.native_args import GemmArgs
from dovetail_kernels.op import Arguments

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class MoeArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("x", _pointer),
        ("out", _pointer),
        ("residual", _pointer),
        ("shared", _pointer),
        ("shared_scores", _pointer),
        ("weights", _pointer),
        ("experts", _pointer),
        ("gate_up", _pointer),
        ("down", _pointer),
        ("multiply_gate_up", _pointer),
        ("multiply_down", _pointer),
        ("x_stride", _int64),
        ("tokens", _int64),
        ("picked", _int64),
        ("num_experts", _int64),
        ("size", _int64),
        ("inner", _int64),
        ("activation", _int32),
        ("limit", ctypes.c_float),
        ("weighs_inputs", _int32),
        ("is_gated", _int32),
    ]


class PackedExperts:
    """One matrix of each expert of a layer, all packed in one format.

    `biases` are their own, in the order of the matrices' outputs.
    Shapes: biases [X, outputs] float32
    """

    def __init__(self, weights: Sequence[Packed], biases: torch.Tensor | None = None) -> None:
        first = weights[0]
        assert {weight.layout for weight in weights} == {first.layout}, "experts of unlike matrices"
        self.weights = weights
        self.biases = None if biases is None else biases.float().contiguous()
        self.in_size, self.out_size = first.in_size, first.out_size
        self.group_address = first.group_address
        self._args = (GemmArgs * len(weights))()
        for number, (args, weight) in enumerate(zip(self._args, weights, strict=True)):
            ctypes.memmove(ctypes.byref(args), weight.reference, ctypes.sizeof(GemmArgs))
            args.residual = args.picks = None
            args.bias = None if self.biases is None else self.biases[number].data_ptr()
            args.bias_stride = args.activation = 0
        self.address = ctypes.addressof(self._args)

    def __len__(self) -> int:
        return len(self.weights)


def packed_experts(
    weights: Sequence[object], biases: torch.Tensor | None = None
) -> PackedExperts | None:
    """Return the matrices of a layer's experts, or None if they are not packed alike."""
    packed = [weight for weight in weights if isinstance(weight, Packed)]
    if not packed or len(packed) < len(weights) or len({one.layout for one in packed}) > 1:
        return None
    return PackedExperts(packed, biases)


class Moe:
    """The experts of a layer. One serves one thread at a time.

    The halves of gate_up may be packed interleaved (`is_gated`) or one after the other. `limit`
    belongs to gates that clamp. `weighs_inputs`: weights multiply what experts read. Experts
    without a gate have one half, to which the activation is applied.
    """

    def __init__(
        self,
        gate_up: PackedExperts,
        down: PackedExperts,
        activation: str,
        *,
        limit: float = 0.0,
        weighs_inputs: bool = False,
        is_gated: bool = True,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("moe", MoeArgs)
        self._kept = gate_up, down
        self._args = MoeArgs(
            gate_up=gate_up.address,
            down=down.address,
            multiply_gate_up=gate_up.group_address,
            multiply_down=down.group_address,
            num_experts=len(gate_up),
            size=down.out_size,
            inner=down.in_size,
            activation=CODES[activation],
            limit=limit,
            weighs_inputs=int(weighs_inputs),
            is_gated=int(is_gated),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        residual: torch.Tensor | None = None,
        shared: torch.Tensor | None = None,
        shared_scores: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the weighted sum of the picked experts' outputs, plus a residual, plus a shared
        expert's output times the sigmoid of its scores.

        x may be a slice with strided rows; the others are contiguous. An expert's matrices are read
        when this runs: they may have been overwritten since.
        Shapes: x [T, E] and weights [T, A] float32, experts [T, A] int64, residual and shared
        [T, E], shared_scores [T, 1] -> [T, E]
        """
        out = torch.empty((x.shape[0], self._args.size))
        args = self._args
        args.x, args.x_stride, args.out = x.data_ptr(), row_stride(x), out.data_ptr()
        args.residual, args.shared = _address(residual), _address(shared)
        args.shared_scores = _address(shared_scores)
        args.weights, args.experts = weights.data_ptr(), experts.data_ptr()
        args.tokens, args.picked = experts.shape
        if self._kernel(self._reference):
            raise MemoryError(f"no memory for {args.tokens * args.picked} rows of {args.size}")
        return out


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the experts' weights packed, once for many calls."""
    is_gated = arguments.get("is_gated", True)
    one, two = arguments.get("biases") or (None, None)
    gate_up = PackedExperts([Packed(w, is_gated=is_gated) for w in arguments["gate_up"]], one)
    down = PackedExperts([Packed(w) for w in arguments["down"]], two)
    rest = {name: arguments[name] for name in ("x", "weights", "experts")}
    limit = arguments.get("limit", 0.0)
    moe = Moe(gate_up, down, arguments["activation"], limit=limit, is_gated=is_gated)
    return {"layer": moe, **rest}


NATIVE = native_implementation(call_layer, prepare=_prepare)
