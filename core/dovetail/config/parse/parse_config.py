"""parse_config(args): the first thing that every command which starts an engine does.

Files, variables and flags become one Config. Deprecated names give a note; unsupported flags and
unknown choices are errors. Nothing is resolved yet.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from dovetail.config.config import Config
from dovetail.config.parse.flags import config_of
from dovetail.config.rules.checks import checked
from dovetail.config.rules.model.demo import with_demo_fields
from dovetail.errors import ConfigError


def parse_config(args: argparse.Namespace, *, stream: TextIO | None = None) -> Config:
    """Return the config of parsed arguments, with flags and choices checked.

    Writes notes and warnings to `stream`, standard error by default. Raises: ConfigError
    """
    config = config_of(args, model=_one_model(args.model_tag), environ=os.environ)
    config.tell(sys.stderr if stream is None else stream)
    return checked(with_demo_fields(config))


def _one_model(named: str | Sequence[str] | None) -> str | None:
    """Return the one model of arguments that may name several. Raises: ConfigError for more"""
    if named is None or isinstance(named, str):
        return named
    if len(named) > 1:
        raise ConfigError(
            f"there is room for one model, and {len(named)} are named.",
            where="MODEL",
            fix="name one; `dovetail serve` takes several.",
        )
    return named[0] if named else None
