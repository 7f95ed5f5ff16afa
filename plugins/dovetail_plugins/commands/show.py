"""`dovetail show`: the facts of one model of this machine: sizes, template, parameters, licence."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

PARTS = {
    "modelfile": "its Modelfile",
    "template": "its chat template",
    "parameters": "its parameters",
    "system": "its system message",
    "license": "its licence",
}
LICENSE_LINES = 2


class ShowCommand(Command):
    """`dovetail show`."""

    info = Info(summary="show a model's sizes, template, parameters and licence")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model, what to print and the store arguments. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_store_arguments

        parser.add_argument("model", metavar="MODEL", help="a name that `dovetail list` shows")
        only = parser.add_mutually_exclusive_group()
        for name, text in PARTS.items():
            only.add_argument(
                f"--{name}", dest="part", action="store_const", const=name, help=f"only {text}"
            )
        only.add_argument("--json", action="store_true", help="print JSON, as /api/show has it")
        add_store_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the facts; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.commands._created import catalogue_of, found
        from dovetail_plugins.created_models.showing import facts_of

        catalogue = catalogue_of(args)
        model = found(catalogue, args.model, "dovetail show")
        own = catalogue.created.modelfile(model.name, model)
        facts = facts_of(catalogue.entry(model).config, model, own)
        if args.json:
            print(json.dumps(facts, indent=2, ensure_ascii=False))
        elif args.part:
            print(facts[args.part])
        else:
            print("\n".join(_screen(facts, model.num_bytes, str(model.path))))
        return 0


def _screen(facts: Mapping[str, Any], num_bytes: int, path: str) -> Iterator[str]:
    from dovetail_plugins.inspect.render import size

    details, info = facts["details"], facts["model_info"]
    family = details["family"]
    rows = {
        "architecture": family,
        "parameters": details["parameter_size"] or "?",
        "quantization": details["quantization_level"] or "?",
        "size": size(num_bytes),
        "context length": info[f"{family}.context_length"],
        "embedding length": info[f"{family}.embedding_length"],
        "capabilities": ", ".join(facts["capabilities"]),
        "files": path,
    }
    yield "Model"
    yield from (f"  {name.ljust(18)}{value}" for name, value in rows.items())
    for title, text in (("Parameters", facts["parameters"]), ("System", facts["system"])):
        yield from _section(title, text.splitlines())
    yield from _section("License", facts["license"].strip().splitlines()[:LICENSE_LINES])


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"\n{title}"
        yield from (f"  {line}" for line in lines)
