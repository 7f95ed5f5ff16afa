"""select_backend(constraint): the backend that enforces all of a constraint, or an error naming
what none enforces.

Looks only at backend classes: compiles nothing and needs no vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
)
from dovetail.interfaces.data.spec import Selection, StructuredOutputSpec
from dovetail.interfaces.structured_output import (
    InvalidConstraint,
    StructuredOutputBackend,
    UnsupportedPart,
)
from dovetail.structured_output.schemas import rewritten_constraint
from dovetail_grammars.rewriting.pipeline import original
from dovetail_grammars.schema import unsupported_keywords

NAMES_SHOWN = 3


def prepared(constraint: Constraint, where: str) -> Constraint:
    """Return a constraint for backends, with its schemas rewritten. Raises: RequestError"""
    try:
        return rewritten_constraint(constraint)
    except InvalidConstraint as error:
        raise RequestError(
            f"{error}.", where=f"{where}{error.pointer}", code="unsupported_schema"
        ) from error


def select_backend(
    spec: StructuredOutputSpec, constraints: Sequence[Constraint], requested: str | None, where: str
) -> str:
    """Return the name of the backend to use. Raises: RequestError, as `select_backends` does"""
    return next(select_backends(spec, constraints, requested, where))


def select_backends(
    spec: StructuredOutputSpec, constraints: Sequence[Constraint], requested: str | None, where: str
) -> Iterator[str]:
    """Yield the names of the backends to try, best first. `requested` is the request's choice.

    Raises: RequestError that points to what is not enforced.
    """
    classes = {s.name: backend_class(s) for s in spec.backends}
    if not classes:
        raise none_installed(where)
    preferred = requested or spec.backend
    check_backend(spec, preferred, where)
    if preferred != "auto":
        unsupported = _unsupported(classes[preferred], constraints)
        is_final = bool(requested) or not spec.falls_back
        if unsupported and is_final:
            raise _refused(preferred, unsupported, where)
        if is_final:
            yield preferred
            return
    ranked = ranked_backends(spec, preferred)
    answers = {}
    for name in ranked:
        unsupported = _unsupported(classes[name], constraints)
        if unsupported:
            answers[name] = unsupported
        else:
            yield name
    if len(answers) == len(ranked):
        nearest = min(ranked, key=lambda name: len(answers[name]))
        raise _refused(nearest, answers[nearest], where)


def ranked_backends(spec: StructuredOutputSpec, preferred: str) -> list[str]:
    """Return the names of a server's backends, the preferred one first."""
    ranks = {s.name: (s.name != preferred, -backend_class(s).auto_rank) for s in spec.backends}
    return sorted(ranks, key=lambda name: (ranks[name], name))


def first_backend(spec: StructuredOutputSpec) -> str:
    """Return the backend that is tried first if a request names none."""
    return ranked_backends(spec, spec.backend)[0]


def none_installed(where: str | None = None) -> RequestError:
    """Return the error for a constraint when no backend is installed."""
    return RequestError(
        "no backend for structured output is installed.",
        where=where,
        fix="run `pip install llguidance` where the server runs.",
        code="unsupported_field",
    )


def check_backend(spec: StructuredOutputSpec, name: str, where: str) -> None:
    """Raise RequestError for a backend that is not loaded; `where` is the field with its name."""
    names = ["auto", *(selection.name for selection in spec.backends)]
    if name not in names:
        raise RequestError(
            f'this server has no structured-output backend "{name}".',
            where=where,
            fix=f"use one of: {', '.join(names)}.",
        )


def backend_class(selection: Selection) -> type[StructuredOutputBackend]:
    """Return a backend's class. Raises: PluginError"""
    plugin: type[StructuredOutputBackend] = registry.admin.load_selection(selection)
    return plugin


def _refused(name: str, found: Sequence[UnsupportedPart], where: str) -> RequestError:
    first = found[0]
    others = len(found) - 1
    more = f" (and {others} more reason{'s' * (others > 1)})" if others else ""
    return RequestError(
        f"the backend {name} cannot enforce this: {first.what}{more}.",
        where=f"{where}{first.pointer}",
        fix="remove it, or choose another backend.",
        code="unsupported_schema",
    )


def _unsupported(
    backend: type[StructuredOutputBackend], constraints: Sequence[Constraint]
) -> list[UnsupportedPart]:
    return [part for constraint in constraints for part in unsupported_parts(backend, constraint)]


def unsupported_parts(
    backend: type[StructuredOutputBackend], constraint: Constraint
) -> list[UnsupportedPart]:
    """Return the parts of a constraint that the backend does not enforce."""
    match constraint:
        case JsonSchema(schema, whitespace):
            missing = _needs(backend, "json") or [
                UnsupportedPart(original(schema, part.pointer), part.what)
                for part in unsupported_keywords(backend, schema)
            ]
            return (
                missing
                if whitespace == JsonSchema().whitespace
                else missing or _needs(backend, "whitespace")
            )
        case Regex():
            return _needs(backend, "regex")
        case Grammar(_, language):
            missing = _needs(backend, "grammar")
            if not missing and language not in backend.languages:
                return [UnsupportedPart("", f"grammars in {language} are not supported")]
            return missing
        case FreeText(_, grammar):
            within = unsupported_parts(backend, Grammar(grammar, "gbnf")) if grammar else []
            return _needs(backend, "free_text") or within
        case Concat(parts) | Choice(parts):
            is_words = isinstance(constraint, Choice) and all(isinstance(p, Literal) for p in parts)
            if is_words:
                has_choice = "choice" in backend.capabilities
                return [] if has_choice else _needs(backend, "regex")
            missing = _needs(backend, "concat")
            return missing or [r for part in parts for r in unsupported_parts(backend, part)]
        case Repeat(part):
            return _needs(backend, "concat") or unsupported_parts(backend, part)
        case _:
            return []


_MISSING = {
    "json": "JSON schemas are not supported",
    "regex": "regular expressions and choices are not supported",
    "grammar": "grammars are not supported",
    "concat": "constraints of several parts are not supported",
    "free_text": "free text before a constraint is not supported",
    "whitespace": "a pattern for white space is not supported",
}


def _needs(backend: type[StructuredOutputBackend], capability: str) -> list[UnsupportedPart]:
    return [] if capability in backend.capabilities else [UnsupportedPart("", _MISSING[capability])]
