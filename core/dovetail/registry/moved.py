"""What plugins of other packages knew under another name: groups, modules and methods.

A name that moved is an error, or a line in the log, that says where it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.registry.entry import Entry

PAGE = "docs/how_to/upgrade_a_plugin.md"

GROUPS = {
    "device": "platform",
    "guided_decoding_backend": "structured_output_backend",
    "spec_acceptance_method": "acceptance",
}
"""Kinds whose entry-point group, "dovetail." and this, has another name now."""

MODULES = {
    "dovetail.interfaces.form": "dovetail.interfaces.constraint",
    "dovetail.interfaces.guided": "dovetail.interfaces.structured_output",
    "dovetail.registry.known": "dovetail.registry.unsupported_names",
    "dovetail.testing.cuts": "dovetail.testing.text_splits",
    "dovetail.testing.drive": "dovetail.testing.scripted_steps",
    "dovetail.testing.forms": "dovetail.testing.constraint_examples",
    "dovetail.testing.fresh": "dovetail.testing.isolated_import",
    "dovetail.testing.scene": "dovetail.testing.attention_scenario",
    "dovetail.testing.walks": "dovetail.testing.random_walks",
}
"""Modules that have another name now."""

METHODS = {
    "tool_parser": {"form": "constraint()", "forms": "calls_constraint()"},
    "quantization": {"kept": "nothing: core asks for it no longer"},
}
"""Kind -> methods that are called no longer, and what took their place."""


def unknown_groups(entries: Iterable[Entry], known: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each group of a distribution whose plugins nobody can choose."""
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
    """Return what to do about an import from a module of dovetail that failed, None for others."""
    if module.partition(".")[0] != "dovetail":
        return None
    if module in MODULES:
        return f"import {MODULES[module]} in its place; {PAGE} says what changed."
    return f"import what this version of {module} has; {PAGE} says what changed."
