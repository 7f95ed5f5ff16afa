"""Errors between processes: one of dovetail's error tree becomes a Fault, and an error again.

A class of a plugin's own travels as the class of the tree that it derives from.
"""

from __future__ import annotations

from dovetail import errors
from dovetail.engine.messages import Fault
from dovetail.errors import DovetailError, Overloaded, RequestError


def fault_of(error: DovetailError) -> Fault:
    """Return an error as it travels."""
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    request = error if isinstance(error, RequestError) else None
    return Fault(
        kind=kind,
        what=error.what,
        where=error.where,
        fix=error.fix,
        code=request.code if request else None,
        status=request.status if request else None,
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else None,
    )


def error_of(fault: Fault) -> DovetailError:
    """Return the error that a fault was made of."""
    error_class: type[DovetailError] = getattr(errors, fault.kind)
    if issubclass(error_class, Overloaded):
        assert fault.status is not None and fault.retry_after_s is not None
        return error_class(fault.what, status=fault.status, retry_after_s=fault.retry_after_s)
    if issubclass(error_class, RequestError):
        return error_class(
            fault.what, where=fault.where, fix=fault.fix, code=fault.code, status=fault.status
        )
    return error_class(fault.what, where=fault.where, fix=fault.fix)
