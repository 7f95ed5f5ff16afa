"""`dovetail quantize`: makes a quantized checkpoint from a full-precision one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.errors import listed
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail_plugins.quantize.job import JobResult
    from dovetail_plugins.quantize.settings import QuantizeFlags


SHOWN = 3


class QuantizeCommand(Command):
    """`dovetail quantize`."""

    info = Info(summary="write a quantized copy of a checkpoint")
    common = frozenset(
        {"method", "out", "group", "calibration", "calibration_tokens", "report", "load_format"}
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the method and output flags, and the flags of serve. Mutates: parser."""
        from dovetail.config.parse.flags import add_groups
        from dovetail_plugins.commands._serve_flags import add_serve_arguments
        from dovetail_plugins.quantize.settings import QuantizeFlags

        add_groups(parser, (QuantizeFlags,))
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Quantize; return the exit status. Raises: ConfigError."""
        import sys
        from pathlib import Path

        from dovetail.config.parse.flags import group_of
        from dovetail.config.parse.parse_config import parse_config
        from dovetail_plugins.quantize.preparing import prepared
        from dovetail_plugins.quantize.settings import QuantizeFlags, check_flags

        flags = group_of(args, QuantizeFlags)
        check_flags(flags)
        job = prepared(parse_config(args), flags, is_shown=sys.stderr.isatty())
        _tell(flags, job.write(Path(flags.out)))
        return 0


def _tell(flags: QuantizeFlags, done: JobResult) -> None:
    """Print the report, and write it in full if requested."""
    import json
    from pathlib import Path

    from dovetail_plugins.quantize import report
    from dovetail_plugins.quantize.plan import USUAL

    print("\n".join(report.lines(done.errors)))
    rare = report.rare(done.errors, done.least_tokens)
    if rare:
        print(
            f"rounded to nearest: {listed(rare, SHOWN)}: fewer than {done.least_tokens} tokens of "
            "the text came there"
        )
    for reason, names in report.by_reason(done.plan.whole).items():
        if reason != USUAL:
            print(f"as before: {listed(names, SHOWN)}: {reason}")
    groups = "" if done.group is None else f" in groups of {done.group}"
    print(
        f"{flags.out}: {done.num_bytes / 2**20:.1f} MiB, {len(done.errors)} matrices{groups}\n"
        f"Serve it with: dovetail serve {flags.out}"
    )
    if flags.report:
        text = json.dumps(report.as_data(done.errors), indent=1)
        Path(flags.report).write_text(text + "\n", encoding="utf-8")
