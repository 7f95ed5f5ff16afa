"""CompiledForward: a model's forward pass through torch.compile, used if it is faster.

The operators between attention calls (norms, gates, residuals, rotary embedding, unquantized
products) are compiled; attention, cache writes and packed products are left alone
(`layers.opaque`). Both passes are timed alternately at typical numbers of tokens, and the faster
one is used. Two graphs serve all steps: one token, and any other number. A failed compilation is
logged, and the eager pass stays.
"""

from __future__ import annotations

import logging
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from dovetail.runner.device import DeviceCalls

log = logging.getLogger(__name__)

ModelForward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(token ids, positions) -> hidden states."""
Pass = Callable[[], torch.Tensor]
"""A whole forward pass at one number of tokens."""

LEAST_GAIN = 1.03
"""Minimum speedup: a smaller one is not worth results with different bits."""
MAX_PAIRS, PAIRS_S = 7, 1.0
"""Both passes are timed in turns, up to this many pairs or seconds."""
SETTINGS = {"force_disable_caches": True, "compile_threads": 1}
"""No cache is unpickled from a folder that others may write to, and no process is started."""


class CompiledForward:
    """Runs the model's forward pass, eagerly until `choose` finds the compiled one faster."""

    def __init__(self, forward: ModelForward, calls: DeviceCalls) -> None:
        self._own = forward
        self._calls = calls
        self._made: ModelForward = torch.compile(forward, backend=self._compile, fullgraph=True)
        self._forced: bool | None = None
        self._sizes: list[int] = []
        self._wins: list[bool] = []
        self.num_graphs = 0
        self.reason: str | None = None

    def __call__(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of tokens. Shapes: token_ids, positions [T] -> [T, E]"""
        if self._forced:
            return self._run_to_compile(token_ids, positions)
        if self._forced is None and self.takes(len(token_ids)):
            with torch.compiler.set_stance("eager_on_recompile"):
                return self._made(token_ids, positions)
        return self._own(token_ids, positions)

    def takes(self, num_tokens: int) -> bool:
        """Return whether a pass of this many tokens uses the compiled version."""
        if not self._sizes:
            return False
        return self._wins[min(bisect_left(self._sizes, num_tokens), len(self._sizes) - 1)]

    def choose(self, passes: Mapping[int, Pass], max_captured: int = 0) -> None:
        """Compile, and decide which version to use at each of these numbers of tokens and below.
        Passes of up to `max_captured` tokens are timed as graphs if the device has them.

        Mutates: self, once
        """
        if self._sizes:
            return
        ratios = {}
        start_s = time.perf_counter()
        for size in sorted(passes, reverse=True):
            if not self.compile(passes[size]):
                return
        compile_s = time.perf_counter() - start_s
        for size in sorted(passes):
            ratios[size] = self._ratio(passes[size], is_captured=size <= max_captured)
        self._sizes = list(ratios)
        self._wins = [ratio >= LEAST_GAIN for ratio in ratios.values()]
        log.info(
            "compiled the model's forward pass in %.1f s, %d graphs; speed by number of tokens: %s",
            compile_s,
            self.num_graphs,
            ", ".join(_summary(*pair) for pair in ratios.items()),
        )

    def compile(self, run: Callable[[], object]) -> bool:
        """Run a function whose pass is compiled; return whether that works. Mutates: self"""
        if self.reason is not None:
            return False
        self._forced = True
        try:
            run()
        except Exception as error:  # of the compiler, whose errors have no common type
            log.debug("the model's forward pass could not be compiled", exc_info=error)
            self.reason = f"{type(error).__name__}: {_first_line(error)}"
            log.warning("the model runs uncompiled, because it cannot be compiled: %s", self.reason)
        finally:
            self._forced = None
        return self.reason is None

    def _run_to_compile(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run the compiled pass: one graph for a single token, one for any other number."""
        if len(token_ids) > 1:
            torch._dynamo.mark_dynamic(token_ids, 0)
            torch._dynamo.mark_dynamic(positions, 0)
        return self._made(token_ids, positions)

    def _compile(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return the function that runs a graph. torch calls it. Mutates: self"""
        from torch._inductor.compile_fx import compile_fx

        self.num_graphs += 1
        return cast(Callable[..., Any], compile_fx(module, list(inputs), config_patches=SETTINGS))

    def _ratio(self, run: Pass, *, is_captured: bool) -> float:
        """Return the median ratio of eager to compiled time, both timed in turns."""
        own, compiled = (self._timer(run, is_captured, is_made) for is_made in (False, True))
        own(), compiled()
        until_s = time.perf_counter() + PAIRS_S
        pairs = [(own(), compiled())]
        while len(pairs) < MAX_PAIRS and time.perf_counter() < until_s:
            pairs.append((own(), compiled()))
        return statistics.median(one / other for one, other in pairs)

    def _timer(self, run: Pass, is_captured: bool, is_made: bool) -> Callable[[], float]:
        """Return a function that runs one of the two passes and returns its seconds."""

        def timed(function: Callable[[], object]) -> float:
            before = self._calls.mark()
            function()
            after = self._calls.mark()
            after.wait()
            return max(after.seconds_since(before), 1e-9)

        def run_one() -> torch.Tensor:
            self._forced = is_made
            try:
                return run()
            finally:
                self._forced = None

        graph = self._calls.graph() if is_captured else None
        if graph is None:
            return lambda: timed(run_one)
        try:
            graph.capture(run_one)
        except RuntimeError as error:  # steps will fail to be captured too, and log it
            log.debug("a forward pass cannot be captured for timing", exc_info=error)
            return lambda: timed(run_one)
        return lambda: timed(graph.replay)


def _summary(size: int, ratio: float) -> str:
    choice = "compiled" if ratio >= LEAST_GAIN else "own"
    return f"{size} x{ratio:.2f} ({choice})"


def _first_line(error: Exception) -> str:
    """Return the first line of an error, or two lines if the first ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason"]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
