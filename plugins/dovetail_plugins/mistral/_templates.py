"""Chat templates for Mistral's tokenizer versions, whose own files carry none.

Source: https://github.com/mistralai/mistral-common (tokenizers/instruct.py), its output for each
version. Text in a prompt that spells a marker becomes that marker, as in all templates.
"""

from __future__ import annotations

_VERSIONS = {"v1": 1, "v2": 2, "v3": 3, "v7": 7, "v11": 11, "v13": 13}

_OLDEST = """{{ bos_token }}
{%- set ns = namespace(system='') %}
{%- for m in messages %}
{%- if m.role == 'system' %}{% set ns.system = ns.system + m.content + '\\n\\n' %}
{%- elif m.role == 'user' %}[INST] {{ ns.system }}{{ m.content }} [/INST]{% set ns.system = '' %}
{%- else %} {{ m.content }}{{ eos_token }}{% endif %}
{%- endfor %}"""

_TEMPLATE = """{{ bos_token }}
{%- set version = VERSION %}
{%- set ns = namespace(first=-1, last=-1, system='') %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- set ns.last = loop.index0 %}
{%- if ns.first < 0 %}{% set ns.first = loop.index0 %}{% endif %}
{%- elif m.role == 'system' and version < 7 %}{% set ns.system = ns.system + m.content + '\\n\\n' %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'system' and version >= 7 -%}
[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]
{%- elif m.role == 'user' %}
{%- if tools and loop.index0 == (ns.first if version >= 13 else ns.last) -%}
[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST]{% if loop.index0 == ns.last %}{{ ns.system }}{% endif %}{{ m.content }}[/INST]
{%- elif m.role == 'tool' -%}
[TOOL_RESULTS]
{%- if version >= 13 %}{{ m.content }}
{%- elif version >= 7 %}{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}
{%- else %}{"content": {% if m.content[:1] in ['{', '['] or m.content.isdigit() %}{{ m.content }}
{%- else %}{{ m.content | tojson }}{% endif %}, "call_id": {{ m.tool_call_id | tojson }}}
{%- endif -%}
[/TOOL_RESULTS]
{%- elif m.role == 'assistant' %}
{%- if m.content %}{{ m.content }}{% endif %}
{%- if m.tool_calls and version < 11 -%}
[TOOL_CALLS][
{%- for call in m.tool_calls -%}
{"name": {{ call.function.name | tojson }}, "arguments": {% if call.function.arguments is string %}
{{- call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif -%}
, "id": {{ call.id | tojson }}}
{%- if not loop.last %}, {% endif %}
{%- endfor -%}
]
{%- elif m.tool_calls %}
{%- for call in m.tool_calls -%}
[TOOL_CALLS]{{ call.function.name }}
{%- if version < 13 %}[CALL_ID]{{ call.id }}{% endif -%}
[ARGS]{% if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}
{%- endfor %}
{%- endif %}{{ eos_token }}
{%- endif %}
{%- endfor %}"""


def template_of(version: str) -> str | None:
    """Return the Jinja template of a tokenizer's version, None if there is none."""
    number = _VERSIONS.get(version)
    if number is None:
        return None
    return _OLDEST if number == 1 else _TEMPLATE.replace("VERSION", str(number))
