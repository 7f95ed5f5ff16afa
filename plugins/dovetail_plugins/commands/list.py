"""`dovetail list`: the models on this machine, under the names that serve accepts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._table import table_lines

if TYPE_CHECKING:
    from dovetail_plugins.inspect.listing import ListedModel

COLUMNS = ("NAME", "SIZE", "ARCHITECTURE", "QUANTIZATION", "FITS", "STORE")


class ListCommand(Command):
    """`dovetail list`."""

    info = Info(summary="list the models on this machine")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the display and store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("--json", action="store_true", help="print JSON")
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the models; return the exit status. Raises: ConfigError."""
        from dovetail_plugins.commands._created import catalogue_of
        from dovetail_plugins.inspect.listing import device_memory, listed

        device, free_bytes = device_memory()
        found = [listed(model, free_bytes) for model in catalogue_of(args).models()]
        if args.json:
            facts = {
                "device": device,
                "free_bytes": free_bytes,
                "models": [m.as_json() for m in found],
            }
            print(json.dumps(facts, indent=2, ensure_ascii=False))
        else:
            print("\n".join(screen(found, device, free_bytes)))
        return 0


def screen(found: Sequence[ListedModel], device: str, free_bytes: int | None) -> list[str]:
    """Return the table as lines, followed by the faults of models."""
    from dovetail_plugins.inspect.from_disk import in_words
    from dovetail_plugins.inspect.render import size

    if not found:
        return ["There is no model on this machine. `dovetail pull ORG/MODEL` fetches one."]
    rows = [COLUMNS, *(_row(one, size(one.model.num_bytes)) for one in found)]
    lines = table_lines(rows)
    lines += [f"{one.model.name}: {one.fault.rstrip('.')}." for one in found if one.fault]
    lines += [f"{one.model.name} {in_words(one.from_disk)}." for one in found if one.from_disk]
    if free_bytes is not None:
        lines.append(f"{size(free_bytes)} are free ({device}); `dovetail inspect NAME` tells more.")
    return lines


def _row(one: ListedModel, size: str) -> tuple[str, ...]:
    fits = {True: "yes", False: "no", None: "?"}[one.fits]
    return (
        one.model.name,
        size,
        one.architecture or "?",
        one.quantization or "?",
        "no" if one.fault else "from disk" if one.from_disk else fits,
        one.model.store,
    )
