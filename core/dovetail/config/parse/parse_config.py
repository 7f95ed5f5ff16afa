"""asked(args): what every command that starts an engine does with its arguments first.

Files, variables and flags become one Config; older names are told, refused flags and unknown
choices end here. Nothing is resolved yet.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TextIO

from dovetail.config.compat.unsupported_flags import refuse
from dovetail.config.config import Config
from dovetail.config.parse.flags import config_of
from dovetail.config.rules.demo import with_demo_fields
from dovetail.config.rules.selections import check_choices, load_plugin_files


def asked(args: argparse.Namespace, *, stream: TextIO | None = None) -> Config:
    """Return the config of parsed arguments, its flags and choices checked.

    Writes notes and warnings to `stream`, standard error by default. Raises: ConfigError
    """
    config = config_of(args, model=args.model_tag, environ=os.environ)
    config.tell(sys.stderr if stream is None else stream)
    refuse(config)
    config = with_demo_fields(config)
    load_plugin_files(config)
    check_choices(config)
    return config
