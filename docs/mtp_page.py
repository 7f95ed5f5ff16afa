"""The page of layers for further tokens: what each family's checkpoint calls them, and what is
refused. The rows come from plugins/dovetail_plugins/drafters/_mtp_layouts.py."""

from __future__ import annotations

HEAD = """\
# Layers for further tokens (MTP)

{note}

`--speculative-config '{{"method": "mtp"}}'` drafts with a layer that the model's own checkpoint
has. It reads a token's vector and the state before it, each normed, and joins them by a projection;
then comes a decoder layer of the model's own sort, a norm, and the model's own head. If there are
several such layers, the first one drafts all tokens. Names that others give the method, such as
`deepseek_mtp`, `qwen3_next_mtp` or `nemotron_h_mtp`, mean the same. GGUF files have the layer as
their last blocks (`nextn_predict_layers`), which draft where the table names an architecture.

With a `model` the method is `assistant`: Gemma 4's assistants (`gemma4_assistant`), which attend to
the keys and values of the model and cache nothing.

| `model_type` | tensors begin with | norms of vector, state, result; projection | count | GGUF |
|---|---|---|---|---|"""
REFUSED_HEAD = """
## Refused

A type that is in neither table is refused, too; the error names those that work. Kimi K2 has no
such layer: the count in its config.json is 0.

| `model_type` | why |
|---|---|"""
IN_GGUF = {
    "glm4_moe": "`glm4moe`",
    "deepseek_v3": "`deepseek2`",
    "glm_moe_dsa": "`glm-dsa`",
    "qwen3_5_text": "`qwen35`",
    "qwen3_5_moe_text": "`qwen35moe`",
}


def mtp_page(note: str) -> str:
    """Return the page; `note` says that it is written by a script."""
    from dovetail_plugins.drafters._mtp_layouts import LAYOUTS, REFUSED

    rows = [HEAD.format(note=note)]
    for name, layout in LAYOUTS.items():
        held = layout.held.replace("{layers}", "N")
        shared = iter(layout.shared)
        parts = [
            f"`{part}`" if part else f"the model's `{next(shared)[:-1]}`" for part in layout.own
        ]
        parts = [part.replace("*", "N") for part in parts]
        names = f"{', '.join(parts[:3])}; {parts[3]}"
        usual = f", {layout.usual_count} if absent" if layout.usual_count else ""
        count = f"`{layout.count}`{usual}"
        rows.append(f"| `{name}` | `{held}` | {names} | {count} | {IN_GGUF.get(name, '')} |")
    rows.append(REFUSED_HEAD)
    rows += [f"| `{name}` | {why} |" for name, why in REFUSED.items()]
    return "\n".join(rows) + "\n"
