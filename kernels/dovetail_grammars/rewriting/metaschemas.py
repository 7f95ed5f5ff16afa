"""metaschema(address): the schema of a draft's schemas, for references to it; nothing is fetched.

Each is one document whose definitions have the names of the published ones. What drafts 2019-09 and
2020-12 divide into vocabularies is together here. Source: https://json-schema.org/specification-links
(drafts 4, 6, 7, 2019-09, 2020-12).
"""

from __future__ import annotations

import copy
import re
from functools import lru_cache
from typing import Any

from dovetail_grammars.keywords import words

_SCHEMA = {"$ref": "#"}
_TEXT, _FLAG, _NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "number"}
_ADDRESS, _ADDRESS_OR_PART = _TEXT | {"format": "uri"}, _TEXT | {"format": "uri-reference"}
_COUNT = {"type": "integer", "minimum": 0}
_TYPES = sorted(words("array boolean integer null number object string"))
_ONE, _SEVERAL = {"$ref": "#/definitions/simpleTypes"}, {"$ref": "#/definitions/schemaArray"}
_NAMES = {"$ref": "#/definitions/stringArray"}
_MEMBERS = {"type": "object", "additionalProperties": _SCHEMA}
_BY_PATTERN = _MEMBERS | {"propertyNames": {"format": "regex"}}
_DEPENDENCIES = {"type": "object", "additionalProperties": {"anyOf": [_SCHEMA, _NAMES]}}
_ANCHOR = _TEXT | {"pattern": "^[A-Za-z_][-A-Za-z0-9._]*$"}

_DEFINITIONS: dict[str, Any] = {
    "schemaArray": {"type": "array", "minItems": 1, "items": _SCHEMA},
    "simpleTypes": {"enum": _TYPES},
    "stringArray": {"type": "array", "items": _TEXT, "uniqueItems": True},
    **dict.fromkeys(("nonNegativeInteger", "nonNegativeIntegerDefault0"), _COUNT),
    **dict.fromkeys(("positiveInteger", "positiveIntegerDefault0"), _COUNT),
    "anchorString": _ANCHOR,
    "uriString": _ADDRESS,
    "uriReferenceString": _ADDRESS_OR_PART,
}
_OF_ALL: dict[str, Any] = {
    "$schema": _ADDRESS,
    **dict.fromkeys(("title", "description"), _TEXT),
    "type": {"anyOf": [_ONE, {"type": "array", "items": _ONE, "minItems": 1, "uniqueItems": True}]},
    "enum": {"type": "array"},
    "format": _TEXT,
    "pattern": _TEXT | {"format": "regex"},
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    "required": _NAMES,
    "uniqueItems": _FLAG,
    **dict.fromkeys(("properties", "definitions"), _MEMBERS),
    "patternProperties": _BY_PATTERN,
    **dict.fromkeys(("additionalProperties", "not"), _SCHEMA),
    "items": {"anyOf": [_SCHEMA, _SEVERAL]},
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _SEVERAL),
    "dependencies": _DEPENDENCIES,
}
_SINCE: dict[int, dict[str, Any]] = {
    6: {
        **dict.fromkeys(("$id", "$ref"), _ADDRESS_OR_PART),
        **dict.fromkeys(("contains", "propertyNames"), _SCHEMA),
        "examples": {"type": "array"},
    },
    7: {
        **dict.fromkeys(("if", "then", "else"), _SCHEMA),
        **dict.fromkeys(("$comment", "contentMediaType", "contentEncoding"), _TEXT),
        "readOnly": _FLAG,
    },
    8: {
        **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "contentSchema"), _SCHEMA),
        **dict.fromkeys(("minContains", "maxContains"), _COUNT),
        **dict.fromkeys(("$defs", "dependentSchemas"), _MEMBERS),
        "dependentRequired": {"type": "object", "additionalProperties": _NAMES},
        **dict.fromkeys(("deprecated", "writeOnly"), _FLAG),
        "$id": _ADDRESS_OR_PART | {"pattern": "^[^#]*#?$"},
        "$anchor": _ANCHOR,
    },
    9: {
        "prefixItems": _SEVERAL,
        "items": _SCHEMA,
        "$dynamicRef": _ADDRESS_OR_PART,
        "$dynamicAnchor": _ANCHOR,
    },
}
"""Draft (8 is 2019-09, 9 is 2020-12) -> what it added or changed."""
_OF_DRAFT_4: dict[str, Any] = {
    "id": _TEXT,
    "enum": {"type": "array", "minItems": 1, "uniqueItems": True},
    "required": {"type": "array", "items": _TEXT, "minItems": 1, "uniqueItems": True},
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _FLAG),
    **{key: {"anyOf": [_FLAG, _SCHEMA]} for key in ("additionalProperties", "additionalItems")},
}
_ADDRESSES = re.compile(
    r"https?://json-schema\.org/(?:draft-0([467])/schema|draft/(2019-09|2020-12)/(?:schema|meta/.*))"
)


def metaschema(address: str) -> dict[str, Any] | None:
    """Return the schema of schemas at an address, the same object each time; None for others."""
    found = _ADDRESSES.fullmatch(address)
    if found is None:
        return None
    return _of_draft(int(found[1]) if found[1] else 8 if found[2] == "2019-09" else 9)


@lru_cache(maxsize=8)
def _of_draft(draft: int) -> dict[str, Any]:
    members = dict(_OF_ALL)
    for since, more in _SINCE.items():
        if since <= draft:
            members |= more
    if draft == 4:
        members |= _OF_DRAFT_4
    elif draft < 9:
        members["additionalItems"] = _SCHEMA
    schema: dict[str, Any] = {"type": "object" if draft == 4 else ["object", "boolean"]}
    schema |= {"definitions": _DEFINITIONS, "$defs": _DEFINITIONS, "properties": members}
    if draft == 4:
        schema["dependencies"] = {f"exclusiveM{end}": [f"m{end}"] for end in ("inimum", "aximum")}
    return copy.deepcopy(schema)  # references within are resolved by the place of the very object
