"""Changes for plugins of other packages: versions of interfaces, groups and methods.

A removed name gives an error, or a line in the log, with its replacement. `dovetail.moved` has the
modules and their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.moved import PAGE, new_name
from dovetail.registry.entry import Entry

GROUPS = {
    "device": "platform",
    "guided_decoding_backend": "structured_output_backend",
    "spec_acceptance_method": "acceptance",
}
"""Kinds whose entry-point group, "dovetail." plus this, has another name now."""

CHANGES: dict[str, dict[int, str]] = {
    "api": {
        2: "`ServerState` is `App`, and what it had of a model's text is in a `ModelText`: "
        "`server.text` is the model's own, `await server.text_for(model)` replaces `for_model`. "
        "`response_meta` takes it after the server, `generation_for` in place of the server.",
    },
    "tool_parser": {
        2: "`form(tool)` is `constraint(tool)`, `forms(call, most)` is `calls_constraint(call, "
        "most)`; both return a `Constraint` of `dovetail.interfaces.data.constraint`. The "
        "capability `has_form` is `constrains_calls`.",
    },
    "structured_output_backend": {
        2: "was `guided_decoding_backend`. `compile(constraint)` takes a `Constraint`, and `load` "
        "returns a `LoadedConstraint`.",
    },
    "attention_backend": {
        2: "`forward` and all `forward_*` take one argument, an `AttentionCall` or a `LatentCall`, "
        "and `pick` takes an `IndexCall`, with what were their arguments.",
    },
    "quantization": {2: "`kept(layer, packs=...)` is gone; core asks for it no longer."},
    "worker": {
        2: "`prepare(guide)` is `prepare(item)`, which may be a constraint, an adapter or a load "
        "of blocks.",
    },
    "executor": {
        2: "`prepare(guide)` is `prepare(item)`, which may be a constraint, an adapter or a load "
        "of blocks.",
    },
}
"""Kind -> version of its interface -> what changed with that version."""

METHODS = {
    "tool_parser": {"form": "constraint()", "forms": "calls_constraint()"},
    "quantization": {"kept": "nothing: core asks for it no longer"},
}
"""Kind -> methods that are not called any more, and their replacements."""


def unknown_groups(entries: Iterable[Entry], known: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each entry-point group of a distribution that is not a known kind."""
    kinds = frozenset(known)
    lost: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        if entry.kind not in kinds:
            lost.setdefault((entry.distribution, entry.kind), []).append(entry.name)
    for (distribution, group), names in lost.items():
        what = (
            f"{distribution} offers {', '.join(sorted(names))} in the entry-point group "
            f"dovetail.{group}, which does not exist, so that it cannot be used."
        )
        fix = "`dovetail plugins list` shows the kinds"
        if group in GROUPS:
            fix = f"the group is now dovetail.{GROUPS[group]}"
        yield f"{what} Fix: {fix}; {PAGE} says what changed."


def advice(module: str) -> str | None:
    """Return a fix for a failed import from a dovetail module, None for other modules."""
    if module.partition(".")[0] != "dovetail":
        return None
    new = new_name(module)
    if new is not None:
        return f"import what {new} has; {PAGE} says what changed."
    return f"import what this version of {module} has; {PAGE} says what changed."


def changes(kind: str, has: int, wants: int) -> str:
    """Return what changed in an interface between two versions, in sentences."""
    by_version = CHANGES.get(kind, {})
    return " ".join(
        by_version[version] for version in range(has + 1, wants + 1) if version in by_version
    )
