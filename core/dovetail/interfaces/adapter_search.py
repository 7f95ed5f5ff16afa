"""AdapterSearch: where an API process finds adapters that are not loaded yet."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.selection import Selection


class AdapterSearch(msgspec.Struct, frozen=True, kw_only=True):
    """`resolvers` are asked in turn for the name of an adapter that is not known. `base_names` are
    those that an adapter may have for the served model; hub ids are looked up in the folder
    `hub_cache` ("": the hub's own)."""

    resolvers: tuple[Selection, ...] = ()
    base_names: tuple[str, ...] = ()
    hub_cache: str = ""
