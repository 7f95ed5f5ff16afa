"""Processors of other data for the conformance kit: a right one, and others that each break one
clause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.errors import RequestError
from dovetail.interfaces.io_processor import IOFacts, IOProcessor
from dovetail.interfaces.plugin import Info


class RightProcessor(IOProcessor):
    """Rows of a table, of whose columns texts are made; the others derive from it."""

    info = Info(summary="the mean vector of a table's rows")
    sample = '{"columns": ["name", "colour"], "rows": [["apple", "red"], ["plum", "blue"]]}'
    task = "embed"

    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return a text for each row."""
        columns, rows = (data.get(n) for n in ("columns", "rows")) if _is_dict(data) else ((), ())
        if not isinstance(columns, list) or not isinstance(rows, list) or not rows:
            raise RequestError("must hold columns and rows.", where="data")
        return ["; ".join(f"{c}: {v}" for c, v in zip(columns, row, strict=False)) for row in rows]

    def answer(self, data: Any, outputs: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return the mean, and how many rows it is of."""
        return {"mean": np.mean(outputs, axis=0).tolist(), "rows": len(outputs)}


def _is_dict(data: Any) -> bool:
    return isinstance(data, dict)


class PaintingProcessor(RightProcessor):
    """Asks for what no model can do."""

    task = "paint"


class SilentProcessor(RightProcessor):
    """Makes no prompts."""

    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return none of them, once they are checked."""
        super().prompts(data)
        return []


class ArrayProcessor(RightProcessor):
    """Answers with what JSON does not know."""

    def answer(self, data: Any, outputs: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return an array."""
        return {"mean": np.mean(outputs, axis=0)}


class PoppingProcessor(RightProcessor):
    """Takes the data apart."""

    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return the texts, and forget the columns."""
        found = super().prompts(data)
        data["columns"] = []
        return found


class DeafProcessor(RightProcessor):
    """Does not look at the vectors."""

    def answer(self, data: Any, outputs: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return the number of rows."""
        return {"rows": len(outputs)}


class CountingProcessor(RightProcessor):
    """Remembers earlier requests."""

    def __init__(self, options: Any, facts: IOFacts) -> None:
        super().__init__(options, facts)
        self._count = 0

    def answer(self, data: Any, outputs: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return the answer with the number of requests so far."""
        self._count += 1
        return {**super().answer(data, outputs), "count": self._count}


class TrustingProcessor(RightProcessor):
    """Believes that all data has its form."""

    def prompts(self, data: Any) -> Sequence[str | Sequence[int]]:
        """Return a text for each row."""
        return [str(row) for row in data["rows"]]
