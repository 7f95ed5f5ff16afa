"""`dovetail inspect`: the contents and memory needs of a checkpoint, without loading it."""

from __future__ import annotations

import argparse
import json

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class InspectCommand(Command):
    """`dovetail inspect`."""

    info = Info(summary="show what a checkpoint holds, the memory it takes and what would run it")
    common = frozenset(
        {
            "json",
            "plot",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "max_model_len",
            "load_format",
            "device",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the display and of serve. Mutates: parser."""
        from dovetail_plugins.commands._serve_flags import add_serve_arguments

        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--plot", metavar="FILE.png", help='draw the memory by part; needs the extra "plot"'
        )
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the facts; return the exit status. Raises: ConfigError if there is no checkpoint"""
        from dovetail.config.parse.parse_config import parse_config
        from dovetail_plugins.inspect.collect import inspect
        from dovetail_plugins.inspect.facts import as_json
        from dovetail_plugins.inspect.render import render

        if args.plot:
            from dovetail_plugins.inspect.picture import draw_memory
            from dovetail_plugins.plot import check_plot

            check_plot(args.plot)
        facts = inspect(parse_config(args))
        if args.plot:
            draw_memory(args.plot, facts)
        print(
            json.dumps(as_json(facts), indent=2, ensure_ascii=False) if args.json else render(facts)
        )
        return 0
