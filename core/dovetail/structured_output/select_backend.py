"""select_backend(constraint): which backend enforces all of a constraint, and what to say when none
does.

Looks at classes only: nothing is compiled and no vocabulary is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.constraint import (
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
from dovetail.interfaces.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import StructuredOutputBackend, UnsupportedPart
from dovetail.structured_output.schema import unsupported_keywords

NAMES_SHOWN = 3


def select_backend(
    spec: StructuredOutputSpec, constraints: Sequence[Constraint], asked: str | None, where: str
) -> str:
    """Return the name of the backend to use. Raises: RequestError, as `select_backends` does"""
    return next(select_backends(spec, constraints, asked, where))


def select_backends(
    spec: StructuredOutputSpec, constraints: Sequence[Constraint], asked: str | None, where: str
) -> Iterator[str]:
    """Yield the names of the backends to try, best first. `asked` is the request's own wish.

    Raises: RequestError that points at what is not enforced.
    """
    classes = {s.name: backend_class(s.name) for s in spec.backends}
    if not classes:
        raise none_installed(where)
    wish = asked or spec.backend
    check_backend(spec, wish, where)
    if wish != "auto":
        found = _refusals(classes[wish], constraints)
        is_final = bool(asked) or not spec.falls_back
        if found and is_final:
            raise _refused(wish, found, where)
        if is_final:
            yield wish
            return
    ranked = sorted(classes, key=lambda name: (name != wish, -classes[name].auto_rank, name))
    answers = {}
    for name in ranked:
        found = _refusals(classes[name], constraints)
        if found:
            answers[name] = found
        else:
            yield name
    if len(answers) == len(ranked):
        least = min(ranked, key=lambda name: len(answers[name]))
        raise _refused(least, answers[least], where)


def none_installed(where: str | None = None) -> RequestError:
    """Return the error for structured output where no backend is installed."""
    return RequestError(
        "no backend for structured output is installed.",
        where=where,
        fix="run `pip install llguidance` where the server runs.",
        code="unsupported_field",
    )


def check_backend(spec: StructuredOutputSpec, name: str, where: str) -> None:
    """Raise RequestError for a backend that is not loaded; `where` is the field that named it."""
    names = ["auto", *(selection.name for selection in spec.backends)]
    if name not in names:
        raise RequestError(
            f'this server has no structured-output backend "{name}".',
            where=where,
            fix=f"use one of: {', '.join(names)}.",
        )


def backend_class(name: str) -> type[StructuredOutputBackend]:
    """Return a backend's class. Raises: PluginError"""
    plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
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


def _refusals(
    backend: type[StructuredOutputBackend], constraints: Sequence[Constraint]
) -> list[UnsupportedPart]:
    return [
        refusal for constraint in constraints for refusal in unsupported_parts(backend, constraint)
    ]


def unsupported_parts(
    backend: type[StructuredOutputBackend], constraint: Constraint
) -> list[UnsupportedPart]:
    """Return what of a constraint the backend does not enforce."""
    match constraint:
        case JsonSchema(schema, whitespace):
            missing = _needs(backend, "json") or unsupported_keywords(backend, schema)
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
                return [UnsupportedPart("", f"grammars in {language} cannot be read")]
            return missing
        case FreeText():
            return _needs(backend, "free_text")
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


_SAID = {
    "json": "JSON cannot be enforced",
    "regex": "regular expressions and choices cannot be enforced",
    "grammar": "grammars cannot be enforced",
    "concat": "constraints of several parts cannot be enforced",
    "free_text": "free text before a constraint cannot be enforced",
    "whitespace": "white space by a pattern cannot be enforced",
}


def _needs(backend: type[StructuredOutputBackend], capability: str) -> list[UnsupportedPart]:
    return [] if capability in backend.capabilities else [UnsupportedPart("", _SAID[capability])]
