"""compile_here(form): a form compiled in this process, for callers who wrote it themselves."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.guided.choose import check_backend, choose_backend
from dovetail.guided.compiler import guide_key
from dovetail.guided.table import GuideTable
from dovetail.interfaces.form import Form
from dovetail.interfaces.guided import Guide, InvalidForm

WHERE = "form"


def compile_here(
    table: GuideTable, form: Form, *, backend: str | None = None, starts_after: str = ""
) -> Guide:
    """Return the guide of an answer that has this form. Raises: RequestError"""
    if backend and table.spec.backends:
        check_backend(table.spec, backend, "backend")
    name = choose_backend(table.spec, [form], backend, WHERE)
    try:
        artifact = table.backend(name).compile(form)
    except InvalidForm as error:
        raise RequestError(f"{error}.", where=WHERE + error.pointer) from error
    key = guide_key(name, artifact, starts_after.encode(), str(False))
    return Guide(backend=name, key=key, artifact=artifact, starts_after=starts_after)
