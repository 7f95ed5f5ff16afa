"""The facts of adapters: which there are, how much room they have, where others are found. Pure
data."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.selection import Selection


class AdapterSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapter"):
    """An adapter as users know it: the `name` that requests ask for, the folder `path` it is read
    from, and the name of the model it was made for (`base`, "": not told).

    `key` tells two adapters of one name apart, which follow each other; the engine gives it.
    """

    name: str
    path: str
    base: str = ""
    key: str = ""


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The room for adapters: `max_slots` of them in one step, of at most `max_rank`, and `max_host`
    in host memory; `dtype` is the type that they are kept in. `max_prompt_slots` of those that put
    vectors before a prompt, at most `max_prompt_tokens`. `takes_bias`: biases are applied, not
    refused. `rope_factors` are the linear rope scalings that adapters may have of their own.
    `methods` read them.
    """

    max_slots: int = 1
    max_rank: int = 16
    max_host: int = 1
    dtype: str
    max_prompt_slots: int = 0
    max_prompt_tokens: int = 0
    takes_bias: bool = False
    rope_factors: tuple[float, ...] = ()
    methods: tuple[Selection, ...] = ()


class AdapterSearch(msgspec.Struct, frozen=True, kw_only=True):
    """`resolvers` are asked in turn for the name of an adapter that is not known. `base_names` are
    those that an adapter may have for the served model; hub ids are looked up in the folder
    `hub_cache` ("": the hub's own)."""

    resolvers: tuple[Selection, ...] = ()
    base_names: tuple[str, ...] = ()
    hub_cache: str = ""
