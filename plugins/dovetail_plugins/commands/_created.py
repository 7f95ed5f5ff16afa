"""The catalogue of commands about models that users create."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from dovetail.interfaces.model_store import StoredModel
    from dovetail_plugins.created_models.store import Record
    from dovetail_plugins.gateway.catalogue import Catalogue


def catalogue_of(args: argparse.Namespace) -> Catalogue:
    """Return this machine's models. Raises: ConfigError"""
    from dovetail_plugins.commands._model_stores import settings_of
    from dovetail_plugins.gateway.catalogue import Catalogue

    return Catalogue(settings_of(args))


def found(catalogue: Catalogue, name: str, where: str) -> StoredModel:
    """Return a model by name or alias. Raises: ConfigError if there is none"""
    model = catalogue.find(name)
    if model is None:
        fix = "`dovetail list` shows what is there."
        raise ConfigError(f"there is no model {name} here.", where=where, fix=fix)
    return model


def store(catalogue: Catalogue, name: str, record: Record, where: str) -> str:
    """Store a model under a name; return the name with its tag. Raises: ConfigError"""
    from dovetail_plugins.created_models.names import full_name
    from dovetail_plugins.created_models.store import CREATED
    from dovetail_plugins.gateway.manage.making import checked_put

    full = full_name(name, where)
    there = catalogue.find(full)
    if there is not None and there.name == full and there.store != CREATED:
        raise RequestError(f'the name "{full}" is taken by a model of {there.store}.', where=where)
    checked_put(catalogue, full, record)
    return full
