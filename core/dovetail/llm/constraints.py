"""ConstraintCalls: structured outputs of an LLM.

Constraints are compiled in this process, without a time limit: the program wrote them itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.sampling_params import SamplingParams, StructuredOutputsParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.structured_output import CompiledConstraint
from dovetail.structured_output.cache import (
    ConstraintCache,
    compile_in_process,
    open_constraint_cache,
)

WHERE = "structured_outputs"


class ConstraintCalls:
    """The constraint methods of an LLM."""

    _constraint_cache: ConstraintCache | None = None

    @property
    @abstractmethod
    def spec(self) -> EngineSpec:
        """Return the resolved facts of the engine."""

    def compile_constraint(
        self, constraint: Constraint, *, backend: str | None = None, starts_after: str = ""
    ) -> CompiledConstraint:
        """Compile a constraint on whole answers, for SamplingParams(constraint=...).

        With `starts_after` it applies after that text, for example the end of the reasoning. If one
        backend cannot compile it, or it allows no first token, the next backend is tried. Raises:
        RequestError for a part that no backend enforces or can read.
        """
        if self._constraint_cache is None:
            self._constraint_cache = open_constraint_cache(self.spec)
        return compile_in_process(
            self._constraint_cache, constraint, backend=backend, starts_after=starts_after
        )

    def _constrained(self, params: Sequence[SamplingParams]) -> list[SamplingParams]:
        """Return params with their `structured_outputs` compiled, equal ones only once. Raises:
        RequestError"""
        compiled: dict[bytes, CompiledConstraint] = {}
        results = []
        for one in params:
            wanted = one.structured_outputs
            if wanted is None:
                results.append(one)
                continue
            key = msgspec.json.encode(wanted)
            if key not in compiled:
                compiled[key] = self._compiled(wanted, one)
            fields = {"structured_outputs": None, "constraint": compiled[key]}
            results.append(msgspec.structs.replace(one, **fields))
        return results

    def _compiled(
        self, wanted: StructuredOutputsParams, params: SamplingParams
    ) -> CompiledConstraint:
        """Compile the constraint that params request. Raises: RequestError"""
        if params.constraint is not None:
            raise RequestError("constraint is set as well.", where=WHERE, fix="set one of the two.")
        # Only structured outputs need pydantic, so it is imported here.
        from dovetail.server.generate.tools.structured_outputs import constraint_of_params

        request = constraint_of_params(msgspec.to_builtins(wanted), self.spec.run.structured_output)
        if request.constraint is None:
            raise RequestError(
                "structural tags within free text are not supported without a server.",
                where=f"{WHERE}.structural_tag",
                fix="use json, regex, choice, grammar or json_object, or send it to a server.",
            )
        return self.compile_constraint(request.constraint, backend=request.backend)
