"""KeyVisit: one request of an owner, from the gate to its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any

from dovetail.errors import RequestError
from dovetail_plugins.gates._keys_file import Key
from dovetail_plugins.gates._limits import Meter


class KeyVisit:
    """Implements interfaces.gate.Visit.

    `meters` are the owner's own, and those of models by name pattern; `models` are the names of the
    server's model.
    """

    def __init__(
        self, key: Key, own: Meter, by_model: Sequence[tuple[str, Meter]], models: tuple[str, ...]
    ) -> None:
        self._key = key
        self._own = own
        self._by_model = by_model
        self._models = models

    @property
    def max_answer_tokens(self) -> int | None:
        """Return the lowest of the limits of an answer."""
        found = [one.limits.answer_tokens for one in self._meters(self._models)]
        return min((limit for limit in found if limit is not None), default=None)

    @property
    def min_priority(self) -> int | None:
        """Return the smallest priority that the key may ask for."""
        return self._key.min_priority

    def check_model(self, name: str) -> None:
        """Raise RequestError if the key does not allow a model."""
        self._check_models((name,))

    def check_admin(self) -> None:
        """Raise RequestError unless the key is an admin's."""
        if not self._key.admin:
            raise forbidden(f"the key {self._key.name} may not change this server.", "admin_only")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the owner's limits."""
        return self._own.headers()

    def follow(
        self, num_prompt_tokens: int, adapter: str, outputs: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        """Return the outputs of a prompt, which count against the limits. Raises: RequestError"""
        names = (adapter,) if adapter else self._models
        self._check_models(names)
        return self._counted(self._meters(names), num_prompt_tokens, outputs)

    async def _counted(
        self, meters: list[Meter], num_prompt_tokens: int, outputs: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        for meter in meters:
            meter.check_prompt(num_prompt_tokens)
        _change(meters, num_queued=1, num_tokens=num_prompt_tokens)
        is_queued = True
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    num_tokens = sum(len(delta.token_ids) for delta in output.deltas)
                    _change(meters, num_queued=-is_queued, num_tokens=num_tokens)
                    is_queued = False
                    yield output
        finally:
            _change(meters, num_queued=-is_queued)

    def _meters(self, names: Sequence[str]) -> list[Meter]:
        found = [m for pattern, m in self._by_model if any(fnmatchcase(n, pattern) for n in names)]
        return [self._own, *found]

    def _check_models(self, names: Sequence[str]) -> None:
        allowed = self._key.models
        if allowed and not any(fnmatchcase(name, one) for name in names for one in allowed):
            what = f'the key {self._key.name} may not use the model "{names[0][:256]}".'
            raise forbidden(what, "model_not_allowed", where="model")


def _change(meters: Sequence[Meter], num_queued: int, num_tokens: int = 0) -> None:
    """Count. Mutates: meters"""
    for meter in meters:
        meter.num_queued += num_queued
        if num_tokens:
            meter.add(num_tokens)


def forbidden(what: str, code: str, where: str | None = None) -> RequestError:
    """Return the error for what a key does not allow."""
    fix = "ask the operator to allow it in the keys file."
    error = RequestError(what, where=where, fix=fix, code=code, status=403)
    error.kind = "permission_error"
    return error
