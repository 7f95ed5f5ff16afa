"""AdapterCalls: the adapters of an LLM, loaded explicitly or with the first request that names one.

The arguments have vLLM's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.config.checkpoint.sources.adapter_path import find_adapter
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.engine.parts.adapters import unknown_adapter
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.lora_request import LoRARequest

OneLora = LoRARequest | str | None
Loras = OneLora | Sequence[OneLora]
"""An adapter for all prompts, or one for each: a LoRARequest (loaded if needed), the name of a
loaded adapter, or None."""


class AdapterCalls:
    """The adapter methods of an LLM; they need enable_lora."""

    _engine: Any

    def load_adapter(
        self, name: str, path: str, *, base_model_name: str = "", load_inplace: bool = False
    ) -> None:
        """Load an adapter from a folder or the hub; requests may name it from then on.

        Raises: RequestError saying what is wrong, with file and key
        """
        spec: EngineSpec = self._engine.spec
        if name in spec.model_names:
            raise RequestError(f'"{name}" is the name of the model.', where="name")
        try:
            hub = Hub(cache=spec.adapter_search.hub_cache or None)
            folder = find_adapter(path, hub, where=f"adapter {name}")
        except ConfigError as error:
            raise RequestError(error.what, where=error.where, fix=error.fix, status=404) from error
        source = AdapterSource(name=name, path=str(folder), base=base_model_name)
        self._engine.load_adapter(source, replaces=load_inplace)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises: RequestError for an unknown name"""
        self._engine.unload_adapter(name)

    def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that are loaded."""
        found: tuple[AdapterSource, ...] = self._engine.adapters()
        return found

    def _adapter_names(self, adapters: Loras, count: int) -> list[str]:
        """Return the adapter's name for each prompt ("": none), after loading the missing ones.
        Raises: RequestError; ValueError for a number of adapters that differs from the prompts'"""
        is_one = adapters is None or isinstance(adapters, LoRARequest | str)
        each: list[Any] = [adapters] * count if is_one else list(adapters)  # type: ignore[arg-type]
        if len(each) != count:
            raise ValueError(f"{count} prompts, but {len(each)} adapters")
        wanted = dict.fromkeys(one for one in each if one is not None)
        if not wanted:
            return [""] * count
        known = {source.name: source for source in self.adapters()}
        for one in wanted:
            self._bring(one, known)
        return [one.lora_name if isinstance(one, LoRARequest) else one or "" for one in each]

    def _bring(self, adapter: LoRARequest | str, known: dict[str, AdapterSource]) -> None:
        """Load an adapter unless it is already loaded. Mutates: known. Raises: RequestError"""
        if isinstance(adapter, str):
            if adapter not in known:
                raise unknown_adapter(adapter)
            return
        name = adapter.lora_name
        if name in known and not adapter.load_inplace:
            return
        if not adapter.lora_path:
            raise unknown_adapter(name)
        self.load_adapter(
            name,
            adapter.lora_path,
            base_model_name=adapter.base_model_name or "",
            load_inplace=adapter.load_inplace,
        )
        known[name] = AdapterSource(name=name, path=adapter.lora_path)
