"""Op: a named computation with one definition, several implementations and one list of cases.

Knows no formula; op folders bring them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

REFERENCE = "reference"
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One set of arguments.

    `build(device)` makes them, always the same ones. `mutates` names the arguments that are results
    too. `moved_bytes` and `flops` are the computation's minimum; they give the floor that `perf`
    compares with. `is_finite`: all results are finite numbers.
    """

    name: str
    dtype: torch.dtype
    build: Callable[[torch.device], Arguments]
    mutates: tuple[str, ...] = ()
    is_finite: bool = True
    rtol: float = 1e-5
    atol: float = 1e-5
    moved_bytes: int = 0
    flops: int = 0


def _available() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A function that computes the same as the reference, on some devices and dtypes.

    `why_not(arguments)` returns the reason why it cannot take them, or None. A higher `rank` is
    tried earlier. `prepare(arguments)` does work once for many calls, such as packing a weight;
    `function` takes its result.
    """

    name: str
    function: Callable[..., Any]
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    rank: int = 0
    unavailable_reason: Callable[[], str | None] = _available
    why_not: Callable[[Arguments], str | None] = field(default=lambda arguments: None)
    prepare: Callable[[Arguments], Arguments] = field(default=lambda arguments: arguments)


class Op:
    """A computation. Its reference is always there and takes anything.

    `cases` are checked, `perf_cases` (the same ones if not given) are timed, `small_cases`
    (likewise) are checked if kernels are interpreted, where microseconds become seconds.
    `preferred` is an external implementation that this process uses wherever it runs: a device's
    own.
    """

    def __init__(
        self,
        *,
        name: str,
        summary: str,
        reference: Callable[..., Any],
        cases: Callable[[], Sequence[Case]],
        perf_cases: Callable[[], Sequence[Case]] | None = None,
        small_cases: Callable[[], Sequence[Case]] | None = None,
        implementations: Sequence[Implementation] = (),
    ) -> None:
        self.name = name
        self.summary = summary
        self.reference = reference
        self.cases = cases
        self.perf_cases = perf_cases or cases
        self.small_cases = small_cases or cases
        self.implementations = sorted(implementations, key=lambda i: -i.rank)
        self.preferred: Implementation | None = None

    def extended(self, implementation: Implementation) -> Op:
        """Return the op with one more implementation."""
        return Op(
            name=self.name,
            summary=self.summary,
            reference=self.reference,
            cases=self.cases,
            perf_cases=self.perf_cases,
            small_cases=self.small_cases,
            implementations=(*self.implementations, implementation),
        )

    def prepare(self, name: str, arguments: Arguments) -> Arguments:
        """Return a case's arguments as the implementation of this name wants them."""
        found = next((i for i in self.implementations if i.name == name), None)
        return arguments if found is None else found.prepare(arguments)

    def why_not(self, name: str, arguments: Arguments) -> str | None:
        """Return why the implementation of this name cannot take arguments; None when it can."""
        found = next((i for i in self.implementations if i.name == name), None)
        return None if found is None else found.why_not(arguments)

    def reasons_against(
        self, implementation: Implementation, device: str, dtype: torch.dtype
    ) -> list[str]:
        """Return why an implementation cannot run on a device with a dtype; empty when it can."""
        reasons = []
        missing = implementation.unavailable_reason()
        if missing is not None:
            reasons.append(missing)
        if device not in implementation.devices:
            reasons.append(f"runs on {', '.join(implementation.devices)}, not on {device}")
        if dtype not in implementation.dtypes:
            reasons.append(f"does not take {dtype}")
        return reasons

    def runs(self, name: str, device: str, dtype: torch.dtype) -> bool:
        """Return whether the implementation of this name can run on a device with a dtype."""
        return any(
            i.name == name and not self.reasons_against(i, device, dtype)
            for i in self.implementations
        )

    def pick(
        self, device: str, dtype: torch.dtype, *, name: str | None = None
    ) -> Callable[..., Any]:
        """Return the best function for a device and dtype, or the one named.

        Raises: LookupError when the named one does not exist or cannot run there.
        """
        if name == REFERENCE:
            return self.reference
        for implementation in self.implementations:
            if name not in (None, implementation.name):
                continue
            reasons = self.reasons_against(implementation, device, dtype)
            if not reasons:
                return implementation.function
            if name is not None:
                raise LookupError(f"{self.name}: {name} {'; '.join(reasons)}")
        if name is not None:
            known = ", ".join([REFERENCE, *(i.name for i in self.implementations)])
            raise LookupError(f"{self.name} has no implementation {name!r}; there are {known}")
        return self.reference
