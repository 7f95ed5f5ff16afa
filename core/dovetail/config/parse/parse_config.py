"""parse_config(args): what every command that starts an engine does with its arguments first.

Files, variables and flags become one Config; deprecated names are noted, unsupported flags and
unknown choices end here. Nothing is resolved yet.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TextIO

from dovetail.config.config import Config
from dovetail.config.parse.flags import config_of
from dovetail.config.rules.checks import checked
from dovetail.config.rules.demo import with_demo_fields


def parse_config(args: argparse.Namespace, *, stream: TextIO | None = None) -> Config:
    """Return the config of parsed arguments, its flags and choices checked.

    Writes notes and warnings to `stream`, standard error by default. Raises: ConfigError
    """
    config = config_of(args, model=args.model_tag, environ=os.environ)
    config.tell(sys.stderr if stream is None else stream)
    return checked(with_demo_fields(config))
