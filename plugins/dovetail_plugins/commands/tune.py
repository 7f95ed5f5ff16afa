"""`dovetail tune`: finds settings for this machine by measuring them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail_plugins.tune.search import Search


class TuneCommand(Command):
    """`dovetail tune`."""

    info = Info(summary="find the settings that are best on this machine, by measuring")
    common = frozenset({"goal", "minutes", "max_loss", "text", "out", "context"})

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the goal, the limits and the engine's flags. Mutates: parser."""
        from dovetail_plugins.bench.offline import add_offline
        from dovetail_plugins.tune.settings import TuneFlags

        add_offline(parser, (TuneFlags,))

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print each outcome, write the settings; return the exit status.

        Raises: ConfigError
        """
        from dovetail.config.parse.flags import group_of
        from dovetail.config.parse.parse_config import parse_config
        from dovetail_plugins.tune import report
        from dovetail_plugins.tune.search import Search
        from dovetail_plugins.tune.settings import TuneFlags, check_flags

        flags = group_of(args, TuneFlags)
        check_flags(flags)
        config = parse_config(args)
        search = Search(
            config=config,
            flags=flags,
            say=lambda outcome: print(report.outcome_line(flags, outcome), flush=True),
        )
        search.run()
        print("\n".join(report.summary_lines(search)))
        _finish(search)
        return 0


def _finish(search: Search) -> None:
    """Print what fits with the settings, and write them if requested."""
    from pathlib import Path

    from dovetail.config.resolve import resolve
    from dovetail_plugins.bench.machine import machine_facts
    from dovetail_plugins.inspect.collect import memory_taken
    from dovetail_plugins.tune import report

    config = search.with_settings(search.best)
    taken = memory_taken(config, resolve(config))
    if taken is not None and taken.longest_tokens:
        print(f"longest context that fits beside the weights: {taken.longest_tokens} tokens")
    if search.flags.out:
        text = report.yaml_text(search, machine_facts()["cpu"])
        Path(search.flags.out).write_text(text, encoding="utf-8")
        print(f"{search.flags.out}: serve it with `dovetail serve --config {search.flags.out}`")
