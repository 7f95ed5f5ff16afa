"""Hashes of KV blocks besides the default one: equal prefixes meet; the encoding is CBOR's."""

from __future__ import annotations

import pytest

from dovetail.engine.kv.prefix_hash import PrefixHasher
from dovetail.engine.request import Request
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_plugins import hash_algorithms


def request_of(token_ids: list[int]) -> Request:
    return Request(
        request_id="r",
        prompt_ids=token_ids,
        sampling=SamplingParams(),
        seed=0,
        max_model_tokens=1_000,
    )


@pytest.mark.parametrize("name", ["SHA256_CBOR", "BLAKE2B"])
def test_equal_prefixes_meet_and_others_do_not(name: str) -> None:
    hasher = PrefixHasher(f"{hash_algorithms.__name__}:{name}", b"key", 4)
    a = hasher.extend(request_of([1, 2, 3, 4, 5, 6, 7, 8]), 2)
    b = hasher.extend(request_of([1, 2, 3, 4, 5, 6, 7, 9]), 2)
    c = hasher.extend(request_of([0, 2, 3, 4, 5, 6, 7, 8]), 2)
    assert a[0] == b[0]
    assert len({a[0], a[1], b[1], c[0], c[1]}) == 5
    assert all(len(value) == 32 for value in a)


def test_the_cbor_encoding_is_rfc_8949() -> None:
    encoded = hash_algorithms._cbor(4)(b"\x01\x02", [0, 23, 24, 65_536])
    assert encoded.hex() == "82" + "420102" + "84" + "00" + "17" + "1818" + "1a00010000"
    heads = [hash_algorithms._cbor_head(0, value).hex() for value in (255, 256, 65_535, 1 << 32)]
    assert heads == ["18ff", "190100", "19ffff", "1b0000000100000000"]
