"""`dovetail serve`: parses flags to a Config, then runs the server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._serve_flags import SERVE_FLAGS, add_serve_arguments

if TYPE_CHECKING:
    from dovetail.config.config import Config


class ServeCommand(Command):
    """`dovetail serve`."""

    info = Info(summary="serve one model or several over the OpenAI HTTP API")
    common = SERVE_FLAGS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model and every flag of the config. Mutates: parser."""
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until a signal arrives; return the exit status. Raises: ConfigError."""
        from dovetail.config.parse.parse_config import parse_config
        from dovetail.config.rules.one_model import check_one_model
        from dovetail_plugins.commands._follow import followed

        models = list(args.model_tag)
        args.model_tag = models[0] if models else None
        config = parse_config(args)  # before logging is set up with possibly invalid names
        if config.parallel.join is not None:
            from dovetail_plugins.joining.late import run as run_late

            return run_late(config)
        if len(models) > 1 or config.gateway.models is not None:
            from dovetail_plugins.gateway.serve import run as launch_several

            return launch_several(config, models)
        if not models and _offers_this_machine(config):
            from dovetail_plugins.gateway.serve import run as launch_several

            return launch_several(config.with_fields({"models": "any"}, origin="default"), [None])
        if config.model.model is not None:
            from dovetail_plugins.created_models.serving import as_created

            config = as_created(config)
        check_one_model(config.origins)
        status = followed(config)
        if status is not None:
            return status
        if config.parallel.headless:
            from dovetail_plugins.joining.headless import run as run_headless

            return run_headless(config)
        from dovetail_plugins.commands._engine_ahead import engine_ahead

        with engine_ahead(config):
            # Import the HTTP stack only once the flags are valid.
            from dovetail.server.launch.serve import run as launch

            return launch(config)


def _offers_this_machine(config: Config) -> bool:
    """Return whether nothing is said of the model to serve, and this machine has models."""
    from dovetail_plugins.gateway.entries import says_nothing_of_a_model

    if not says_nothing_of_a_model(config):
        return False
    from dovetail.config.checkpoint.sources.stores import Stores

    load = config.load
    stores = Stores.of(load.model_dir, load.download_dir, load.use_modelscope)
    return any(not model.fault for model in stores.all_models())
