"""Errors between processes: a DovetailError becomes a Fault, then an error again or a failed
request.

A plugin's own error class is sent as the dovetail class that it derives from.
"""

from __future__ import annotations

import logging

from dovetail import errors
from dovetail.engine.messages import ErrorMessage, RequestUpdate
from dovetail.errors import DovetailError, Overloaded, RequestError

logger = logging.getLogger(__name__)


def fault_of(error: DovetailError) -> ErrorMessage:
    """Return an error in serialized form."""
    kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
    request = error if isinstance(error, RequestError) else None
    return ErrorMessage(
        kind=kind,
        what=error.what,
        where=error.where,
        fix=error.fix,
        code=request.code if request else None,
        status=request.status if request else None,
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else None,
    )


def error_of(fault: ErrorMessage) -> DovetailError:
    """Return the error that a fault was made from."""
    error_class: type[DovetailError] = getattr(errors, fault.kind)
    if issubclass(error_class, Overloaded):
        assert fault.status is not None and fault.retry_after_s is not None
        return error_class(fault.what, status=fault.status, retry_after_s=fault.retry_after_s)
    if issubclass(error_class, RequestError):
        return error_class(
            fault.what, where=fault.where, fix=fault.fix, code=fault.code, status=fault.status
        )
    return error_class(fault.what, where=fault.where, fix=fault.fix)


def as_refusal(error: BaseException) -> RequestError:
    """Return the error for a request whose constraint could not be loaded."""
    if isinstance(error, RequestError):
        return error
    logger.error("a constraint could not be loaded", exc_info=error)
    return RequestError(f"the constraint could not be loaded: {error}", status=500)


def refused(request_id: str, error: RequestError) -> RequestUpdate:
    """Return the final update of a request that cannot run."""
    return RequestUpdate(
        request_id=request_id,
        finish_reason="error",
        error=error.advice,
        error_code=error.code,
        error_status=error.status,
    )
