"""compile_in_process(constraint): a constraint compiled in this process, for callers who wrote it
themselves."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.constraint import Constraint
from dovetail.interfaces.structured_output import CompiledConstraint, InvalidConstraint
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.compiler import constraint_key
from dovetail.structured_output.select_backend import check_backend, select_backend

WHERE = "constraint"


def compile_in_process(
    table: ConstraintCache,
    constraint: Constraint,
    *,
    backend: str | None = None,
    starts_after: str = "",
) -> CompiledConstraint:
    """Return the compiled constraint of an answer that meets this constraint. Raises:
    RequestError"""
    if backend and table.spec.backends:
        check_backend(table.spec, backend, "backend")
    name = select_backend(table.spec, [constraint], backend, WHERE)
    try:
        artifact = table.backend(name).compile(constraint)
    except InvalidConstraint as error:
        raise RequestError(f"{error}.", where=WHERE + error.pointer) from error
    key = constraint_key(name, artifact, starts_after.encode(), str(False))
    return CompiledConstraint(backend=name, key=key, artifact=artifact, starts_after=starts_after)
