"""All models on this machine, or one by name, over the stores that are plugins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail import registry
from dovetail.interfaces.model_store import ModelStore, StoredModel, StorePlaces, WantedModel

KIND = "model_store"


class Stores:
    """The stores of this installation, the highest `auto_rank` first."""

    def __init__(self, places: StorePlaces) -> None:
        self.places = places
        chosen = [registry.choose(KIND, name) for name in registry.names(KIND)]
        stores: list[ModelStore] = [registry.make(one, places) for one in chosen]
        self._stores = sorted(stores, key=lambda store: -store.auto_rank)

    @classmethod
    def of(
        cls, model_dirs: Sequence[str] = (), cache: str | None = None, use_modelscope: bool = False
    ) -> Stores:
        """Return the stores of these flags, and the usual ones."""
        dirs = tuple(model_dirs)
        return cls(StorePlaces(model_dirs=dirs, download_dir=cache, use_modelscope=use_modelscope))

    def all_models(self) -> Iterator[StoredModel]:
        """Yield every model; names that an earlier store has are skipped."""
        names: set[str] = set()
        for store in self._stores:
            for model in store.models():
                if model.name not in names:
                    names.add(model.name)
                    yield model

    def find(self, wanted: WantedModel) -> StoredModel | None:
        """Return the model of the first store that has it, or None. Raises: ConfigError"""
        found = (store.find(wanted) for store in self._stores)
        return next((model for model in found if model is not None), None)

    def titled(self, title: str) -> ModelStore | None:
        """Return the store with this title, if there is one."""
        return next((store for store in self._stores if store.title == title), None)
