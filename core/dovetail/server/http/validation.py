"""The fault in a body as one sentence; pydantic reports an error for each branch of a union.

Its locations mix keys of the body with names of branches; only the body can distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError

Part = str | int
_SOURCES = frozenset({"body", "query", "path"})
_NAMED = "literal_error"
_SHOULD = "Input should be "
_VALID = f"{_SHOULD}a valid "


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFault:
    """The first fault in a body. `param` is the path of the field, empty for the whole body. `code`
    is pydantic's error type."""

    param: str
    what: str
    code: str

    @property
    def message(self) -> str:
        """Return the sentence, prefixed with the field."""
        return f"{self.param}: {self.what}" if self.param else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One pydantic error: its place in the body, and the union and branch that it comes from."""

    path: tuple[Part, ...]
    union: tuple[Part, ...] | None
    branch: Part | None
    kind: str
    text: str

    @property
    def weight(self) -> tuple[int, int, int]:
        """Return how informative it is. A branch of another type is less informative than one that
        almost fits. Among the latter the one that got furthest is best."""
        step = 0 if self.kind.endswith("_type") else 1 if self.kind.endswith("_parsing") else 2
        last = self.path[-1] if self.path else 0
        return step, len(self.path), last if isinstance(last, int) else 0

    @property
    def is_of_another_kind(self) -> bool:
        """Return whether the branch is for other values: another type or another literal."""
        is_type = self.kind.endswith("_type") and self.path == self.union
        return is_type or self.kind == _NAMED


def fault_of(error: RequestValidationError) -> BodyFault | None:
    """Return the first fault of a body; None if pydantic reports none."""
    faults = [_found(one, error.body) for one in error.errors()]
    if not faults:
        return None
    first = faults[0]
    if first.union is not None:
        branches = [one for one in faults if one.union == first.union]
        first = max(_fitting(branches), key=lambda one: one.weight)
        faults = [one for one in branches if one.path == first.path]
    else:
        faults = [first]
    common = _common(faults)
    what = _one_of([one.text for one in faults], common) if common else first.text
    return BodyFault(param=_dotted(first.path), what=what, code=first.kind)


def _fitting(branches: Sequence[_Found]) -> Sequence[_Found]:
    """Return the errors of branches meant for this kind of value; all errors if there are none."""
    others = {one.branch for one in branches if one.is_of_another_kind}
    return [one for one in branches if one.branch not in others] or branches


def _found(error: Mapping[str, Any], body: Any) -> _Found:
    loc: Sequence[Part] = error["loc"]
    source, parts = (loc[0], loc[1:]) if loc and loc[0] in _SOURCES else ("body", loc)
    path: list[Part] = []
    union: tuple[Part, ...] | None = None
    branch: Part | None = None
    value = body
    for number, part in enumerate(parts):
        is_absent = error["type"] == "missing" and number == len(parts) - 1
        if source != "body" or is_absent or _is_within(value, part):
            path.append(part)
            value = value[part] if _is_within(value, part) else None
        elif union is None:
            union, branch = tuple(path), part
    text = str(error["msg"]).removeprefix("Value error, ").replace(" after validation", "")
    return _Found(path=tuple(path), union=union, branch=branch, kind=error["type"], text=text)


def _is_within(value: Any, part: Part) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _common(found: Sequence[_Found]) -> str:
    """Return the common start of errors that each name what one branch expects; else ""."""
    if all(one.kind.endswith("_type") and one.text.startswith(_VALID) for one in found):
        return _VALID
    return _SHOULD if all(one.kind == _NAMED for one in found) else ""


def _one_of(texts: Sequence[str], common: str) -> str:
    """Return the expectations of several branches as one text."""
    return common + " or ".join(dict.fromkeys(text.removeprefix(common) for text in texts))


def _dotted(path: Sequence[Part]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part}]"
    return text
