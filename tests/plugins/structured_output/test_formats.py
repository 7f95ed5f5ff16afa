"""Formats, each against texts that are of it and texts that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import JsonSchema
from dovetail_grammars.json_formats import FORMATS
from dovetail_grammars.rewriting.pipeline import rewritten
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import follows, small_vocabulary
from support.schema_judge import Judge

VALID: dict[str, list[str]] = {
    "date": ["2024-02-29", "1999-12-31", "2000-02-29"],
    "time": ["00:00:00Z", "23:59:59.123456789+05:30", "12:30:00-08:00"],
    "date-time": [
        "2024-01-02T03:04:05Z",
        "1985-04-12T23:20:50.52Z",
        "1937-01-01T12:00:27.87+00:20",
    ],
    "duration": ["P1Y2M3D", "PT1H30M", "P4W", "P1DT12H", "PT36S", "P3Y"],
    "email": [
        *("customersupport@example.com", "first.last+tag@sub-domain.example.co.uk", "a@b.c"),
        *("o'brien_x@mail-relay.example.org", "user%host@example.com", "1234567890@example.com"),
        "averylonglocalpart.with-letters@a-rather-long-company-name.example",
    ],
    "idn-email": ["\u8001@example.com", "ren\u00e9e@example.fr", "plain@example.com"],
    "hostname": [
        *("localhost", "example.com", "my-long-host-name.eu-west-1.compute.example.com"),
        *("a", "3com.com", "a.b.c.d.e.f.g", "customersupportportal.example", f"{'x' * 31}.example"),
    ],
    "idn-hostname": ["example.com", "m\u00fcnchen.example", "fa\u00e7ade.example"],
    "ipv4": ["0.0.0.0", "192.168.1.255", "8.8.8.8"],
    "ipv6": [
        "::1",
        "::",
        "2001:db8::8a2e:370:7334",
        "fe80::1",
        "::ffff:192.0.2.128",
        "1:2:3:4:5:6:7:8",
    ],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000"],
    "uri": [
        *(
            "https://example.com",
            "http://localhost:8080/a/b?c=d&e=%20f#g",
            "ftp://ftp.example.org/x",
        ),
        *(
            "https://user:pass@sub.example.com/~me/",
            "mailto:support@example.com",
            "urn:isbn:0451450523",
        ),
        *("tel:+1-816-555-1212", "file:///etc/hosts", "http://[::1]:80/", "http://10.0.0.1/x"),
        *("ldap://[2001:db8::7]/c=GB?objectClass?one", "s3://my_bucket/key", "data:text/plain,hi"),
    ],
    "uri-reference": [
        "/a/b",
        "#part",
        "a.html",
        "../up?x=1",
        "",
        "//host/x",
        "https://example.com/",
    ],
    "iri": ["https://ex\u00e4mple.com/\u00fc?\u00f6", "http://example.com/"],
    "iri-reference": ["/\u00e4", "#\u00fc", "https://ex\u00e4mple.com/"],
    "uri-template": ["http://example.com/{id}", "/a{?x,y*}", "{+path:3}/b", "plain"],
    "json-pointer": ["", "/", "/a/b", "/a~1b/0", "/~0"],
    "relative-json-pointer": ["0", "1/a", "2#", "10/a~0b"],
    "regex": ["^a+$", "[a-z0-9]+", r"\d{3}", "(foo|bar)?", "", "a.b*"],
}
INVALID: dict[str, list[str]] = {
    "date": ["2023-02-29", "2024-13-01", "2024-1-1", "24-01-01", "2024-01-32", "01/02/2024"],
    "time": ["24:00:00Z", "12:00:00", "12:00Z", "12:60:00Z", "12:00:00+24:00"],
    "date-time": ["2024-01-02 03:04:05Z", "2024-01-02T03:04:05", "2023-02-29T00:00:00Z", "now"],
    "duration": ["P", "PT", "1D", "P1H", "P1Y1W", "PT1D", "P1D2H"],
    "email": [
        "a",
        "@b.c",
        "a@",
        "a b@c.d",
        ".a@b.c",
        "a.@b.c",
        "a..b@c.d",
        "a@-b.c",
        "a@b..c",
        "a@b,c",
    ],
    "idn-email": ["\u8001", "a@", "a b@example.com"],
    "hostname": [
        "",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a_b",
        "a b",
        f"{'x' * 64}",
        f"{'a' * 60}.{'b' * 64}",
    ],
    "idn-hostname": ["", "a b", "-\u00fc", "\u00fc..x"],
    "ipv4": ["256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "a.b.c.d"],
    "ipv6": [
        ":::",
        "1:2:3",
        "12345::",
        "::1::",
        "1:2:3:4:5:6:7:8:9",
        "::1.2.3.256",
        "fe80::1%eth0",
    ],
    "uuid": ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g", ""],
    "uri": [
        "example.com",
        "/a/b",
        "http://",
        "http:/x",
        "http://a b/",
        "http://x/%zz",
        "://x",
        "1a:b",
    ],
    "uri-reference": ["a b", "http://x/%zz", "\\\\host", "#a#b"],
    "iri": ["example.com", "http://a b/", "/a"],
    "iri-reference": ["a b", "#a#b"],
    "uri-template": ["{", "{a", "a}", "{!a}", "{}", "a b"],
    "json-pointer": ["a", "/~2", "/a~", "#/a"],
    "relative-json-pointer": ["/a", "01/a", "-1", "1a"],
    "regex": ["(", "[a-z", "a**", "*", "(a", "a)", "\\"],
}


def test_every_format_has_samples() -> None:
    assert set(VALID) == set(INVALID) == set(FORMATS)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_texts_of_a_format(name: str) -> None:
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    vocabulary = small_vocabulary()
    backend = plugin(plugin.Options(), vocabulary)
    schema = rewritten({"type": "string", "format": name})
    loaded = backend.load(backend.compile(JsonSchema(schema)))
    for texts, is_right in ((VALID[name], True), (INVALID[name], False)):
        written = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
        taken = [follows(loaded.matcher(), vocabulary, text) for text in written]
        assert [
            t for t, is_taken in zip(texts, taken, strict=True) if is_taken is not is_right
        ] == []


LONG: dict[str, tuple[list[str], list[str]]] = {
    "hostname": (
        [f"{'x' * 63}.com", ".".join(["ab"] * 84), "a", ".".join(["x" * 62] * 4)],
        [f"{'x' * 64}.com", ".".join(["ab"] * 85), "a..b", ".".join(["x" * 63] * 4)],
    ),
    "email": (
        [
            f"{'a' * 64}@{'b' * 63}.com",
            f"a@{'.'.join('abcdefghij')}",
            f"a@{'.'.join(['b' * 62] * 4)}",
        ],
        [f"{'a' * 65}@b.com", f"a@{'b' * 64}.com", f"a@{'.'.join(['b' * 63] * 4)}", "a@b..c"],
    ),
}


@pytest.mark.parametrize(
    "beside", [{}, {"minLength": 1, "maxLength": 254}, {"allOf": [{"maxLength": 254}]}]
)
@pytest.mark.parametrize("name", LONG)
def test_hosts_and_mail_addresses_of_full_length_are_taken(name: str, beside: Any) -> None:
    with skipping_unavailable():
        plugin = registry.load("structured_output_backend", "guidance")
    vocabulary, checks = small_vocabulary(), Judge({"type": "string", "format": name})
    backend = plugin(plugin.Options(), vocabulary)
    schema = rewritten({"type": "string", "format": name, **beside})
    loaded = backend.load(backend.compile(JsonSchema(schema)))
    right, wrong = LONG[name]
    for text in [*right, *wrong]:
        is_right = follows(loaded.matcher(), vocabulary, json.dumps(text).encode())
        assert is_right is (text in right) or "allOf" in beside, text
        assert not is_right or checks.fault(json.dumps(text).encode()) is None


def test_a_format_gives_way_only_to_a_pattern_that_excludes_it() -> None:
    local = {"type": "string", "format": "time", "pattern": r"^\d{2}:\d{2}(?::\d{2})?$"}
    assert rewritten(local) == {"type": "string", "pattern": local["pattern"]}
    zoned = local | {"pattern": r"Z$"}
    assert rewritten(zoned)["allOf"][0]["format"] == "time"
