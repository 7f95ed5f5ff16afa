"""`dovetail pull`: fetches the needed files of a model from the hub, ModelScope or Ollama's
registry."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    from dovetail.config.checkpoint.sources.hub import Hub, Wanted
    from dovetail_plugins.ollama_registry.blob import Blob
    from dovetail_plugins.ollama_registry.names import RegistryName

WHERE = "dovetail pull"


class PullCommand(Command):
    """`dovetail pull`."""

    info = Info(summary="fetch a model from the Hugging Face hub, ModelScope or Ollama's registry")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model and the flags of the hub. Mutates: parser."""
        from dovetail_plugins.commands._model_stores import add_hub_arguments

        parser.add_argument(
            "model",
            metavar="ID",
            help="ORG/MODEL, ORG/MODEL:QUANT for one of its GGUF files, or MODEL:TAG of Ollama's "
            "registry",
        )
        add_hub_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Fetch; return the exit status. Raises: ConfigError if the hub does not provide it"""
        from dovetail.config.checkpoint.sources.hub import Wanted
        from dovetail.config.checkpoint.sources.model_path import is_hub_id
        from dovetail.config.rules.model.checkpoint import hub_of
        from dovetail_plugins.commands._model_stores import settings_of

        if (found := _of_registry(args.model)) is not None:
            return _pull_of_registry(found)
        config = settings_of(args)
        repo, _, quant = args.model.partition(":")
        if not is_hub_id(repo) or (quant and "/" not in repo):
            raise ConfigError(
                f"{args.model!r} is not a name of the hub.",
                where=WHERE,
                fix="a name is ORG/MODEL, or ORG/MODEL:QUANT for a GGUF file; one of Ollama's "
                "registry is MODEL:TAG.",
            )
        path = _fetched(
            Wanted(WHERE, repo, config.model.revision), quant, hub_of(config.model, config.load)
        )
        print(f"{args.model} is at {path}\nserve it: dovetail serve {args.model}")
        if (commit := _commit(path)) is not None:
            print(f"this very revision: --revision {commit}")
        return 0


def _of_registry(text: str) -> RegistryName | None:
    """Return the model of Ollama's registry that is named with a tag or its host, or None: a bare
    word is a name of the hub."""
    from dovetail_plugins.ollama_registry.names import HOSTS, registry_name

    is_plain = ":" not in text and not text.lower().startswith(HOSTS)
    return None if is_plain else registry_name(text)


def _pull_of_registry(name: RegistryName) -> int:
    """Fetch a model, with bars. Raises: ConfigError"""
    from tqdm import tqdm

    from dovetail.config.checkpoint.sources.hub import Wanted, check_allowed
    from dovetail_plugins.ollama_registry.fetching import fetch_model

    bars: dict[str, tqdm[NoReturn]] = {}

    def tell(blob: Blob, size: int) -> None:
        short = blob.digest.removeprefix("sha256:")[:12]
        if short not in bars:
            bars[short] = tqdm(total=blob.size, unit="B", unit_scale=True, desc=short)
        bars[short].update(size - bars[short].n)

    check_allowed(Wanted(WHERE, name.full, None))
    try:
        path = fetch_model(name, tell=tell, say=lambda _: None)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"{name.full} cannot be stored: {why}.",
            where=WHERE,
            fix="make room, or set OLLAMA_MODELS to another folder.",
        ) from error
    finally:
        for bar in bars.values():
            bar.close()
    print(f"{name.short} is at {path}\nserve it: dovetail serve {name.short}")
    return 0


def _fetched(wanted: Wanted, quant: str, hub: Hub) -> Path:
    from dovetail.config.checkpoint.sources.hub import check_allowed, fetch, fetch_quant

    check_allowed(wanted)
    return fetch_quant(wanted, quant, hub) if quant else fetch(wanted, hub)


def _commit(path: Path) -> str | None:
    """Return the commit of a path in the hub's cache; None for other paths."""
    places = (parent for parent in path.parents if parent.name == "snapshots")
    snapshots = next(places, None)
    return None if snapshots is None else path.relative_to(snapshots).parts[0]
