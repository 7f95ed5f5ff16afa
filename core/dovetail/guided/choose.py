"""choose_backend(form): which backend enforces all of a form, and what to say when none does.

Looks at classes only: nothing is compiled and no vocabulary is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.guided.schema import schema_refusals
from dovetail.interfaces.form import (
    Choice,
    Form,
    Free,
    Grammar,
    Json,
    Literal,
    Pattern,
    Repeat,
)
from dovetail.interfaces.form import Sequence as InOrder
from dovetail.interfaces.guided import GuidedBackend, Refusal
from dovetail.interfaces.spec import GuidedSpec

NAMES_SHOWN = 3


def choose_backend(spec: GuidedSpec, forms: Sequence[Form], asked: str | None, where: str) -> str:
    """Return the name of the backend to use. Raises: RequestError, as `choose_backends` does"""
    return next(choose_backends(spec, forms, asked, where))


def choose_backends(
    spec: GuidedSpec, forms: Sequence[Form], asked: str | None, where: str
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
        found = _refusals(classes[wish], forms)
        is_final = bool(asked) or not spec.falls_back
        if found and is_final:
            raise _refused(wish, found, where)
        if is_final:
            yield wish
            return
    ranked = sorted(classes, key=lambda name: (name != wish, -classes[name].auto_rank, name))
    answers = {}
    for name in ranked:
        found = _refusals(classes[name], forms)
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


def check_backend(spec: GuidedSpec, name: str, where: str) -> None:
    """Raise RequestError for a backend that is not loaded; `where` is the field that named it."""
    names = ["auto", *(selection.name for selection in spec.backends)]
    if name not in names:
        raise RequestError(
            f'this server has no structured-output backend "{name}".',
            where=where,
            fix=f"use one of: {', '.join(names)}.",
        )


def backend_class(name: str) -> type[GuidedBackend]:
    """Return a backend's class. Raises: PluginError"""
    plugin: type[GuidedBackend] = registry.load("guided_decoding_backend", name)
    return plugin


def _refused(name: str, found: Sequence[Refusal], where: str) -> RequestError:
    first = found[0]
    others = len(found) - 1
    more = f" (and {others} more reason{'s' * (others > 1)})" if others else ""
    return RequestError(
        f"the backend {name} cannot enforce this: {first.what}{more}.",
        where=f"{where}{first.pointer}",
        fix="remove it, or choose another backend.",
        code="unsupported_schema",
    )


def _refusals(backend: type[GuidedBackend], forms: Sequence[Form]) -> list[Refusal]:
    return [refusal for form in forms for refusal in form_refusals(backend, form)]


def form_refusals(backend: type[GuidedBackend], form: Form) -> list[Refusal]:
    """Return what of a form the backend does not enforce."""
    match form:
        case Json(schema, blanks):
            missing = _needs(backend, "json") or schema_refusals(backend, schema)
            return missing if blanks == Json().blanks else missing or _needs(backend, "blanks")
        case Pattern():
            return _needs(backend, "pattern")
        case Grammar(_, language):
            missing = _needs(backend, "grammar")
            if not missing and language not in backend.languages:
                return [Refusal("", f"grammars in {language} cannot be read")]
            return missing
        case Free():
            return _needs(backend, "free")
        case InOrder(parts) | Choice(parts):
            is_words = isinstance(form, Choice) and all(isinstance(p, Literal) for p in parts)
            if is_words:
                has_choice = "choice" in backend.capabilities
                return [] if has_choice else _needs(backend, "pattern")
            missing = _needs(backend, "sequence")
            return missing or [r for part in parts for r in form_refusals(backend, part)]
        case Repeat(part):
            return _needs(backend, "sequence") or form_refusals(backend, part)
        case _:
            return []


_SAID = {
    "json": "JSON cannot be enforced",
    "pattern": "regular expressions and choices cannot be enforced",
    "grammar": "grammars cannot be enforced",
    "sequence": "forms of several parts cannot be enforced",
    "free": "free text before a form cannot be enforced",
    "blanks": "white space by a pattern cannot be enforced",
}


def _needs(backend: type[GuidedBackend], capability: str) -> list[Refusal]:
    return [] if capability in backend.capabilities else [Refusal("", _SAID[capability])]
