"""`dovetail convert`: rewrites a checkpoint in another load format."""

from __future__ import annotations

import argparse

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class ConvertCommand(Command):
    """`dovetail convert`."""

    info = Info(summary="write a checkpoint again in another load format")
    common = frozenset({"to", "out", "ranks", "load_format", "dtype", "quantization"})

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the target and the flags of serve. Mutates: parser."""
        from dovetail_plugins.commands._serve_flags import add_serve_arguments

        own = parser.add_argument_group("Conversion", "What is written where")
        own.add_argument(
            "--to",
            required=True,
            metavar="FORMAT",
            help="load format to write: safetensors, sharded_state, tensorizer, or a plugin's",
        )
        own.add_argument("--out", required=True, metavar="DIR", help="new folder to write into")
        own.add_argument(
            "--ranks",
            type=int,
            default=1,
            metavar="N",
            help="ranks that the layers are divided over (default: 1); sharded_state only",
        )
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Convert; return the exit status. Raises: ConfigError."""
        from pathlib import Path

        from dovetail import registry
        from dovetail.config.parse.parse_config import parse_config
        from dovetail.config.resolve import resolve
        from dovetail.errors import ConfigError

        config = parse_config(args)
        if args.ranks < 1:
            raise ConfigError(
                "must be at least 1.", where="--ranks", fix="leave it out for one rank."
            )
        target = registry.load("load_format", args.to, where="--to")
        own = {"skip_tokenizer_init": True, "device": registry.admin.own("platform", "cpu")}
        spec = resolve(config.with_fields(own, origin="convert"))

        from dovetail_plugins.commands._converted import convert  # torch: after the checks

        done = convert(spec.run, target, Path(args.out), num_ranks=args.ranks)
        print(
            f"{args.out}: {done.num_bytes / 2**20:.1f} MiB of weights for {args.ranks} "
            f"rank{'s' * (args.ranks > 1)}, {done.num_settings} other files\n"
            f"Serve it with: dovetail serve {args.out} --load-format {args.to}"
        )
        return 0
