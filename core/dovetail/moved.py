"""New homes of moved modules and names of dovetail that other packages may still import.

NAMES is the table. An old module can still be imported: its names resolve to their new home, with a
warning that says where that is. Imports nothing of dovetail.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PAGE = "docs/how_to/upgrade_a_plugin.md"

_ADMIN = (
    "as_text", "block", "build_options", "defer", "describe", "describe_entry", "foreign",
    "hook_entries", "kind_named", "load_entry", "load_file", "load_selection", "load_target",
    "lost", "options_for", "own", "require_selection", "selection_of", "value_of", "with_entries",
)  # fmt: skip

NAMES = {
    "dovetail.layers.kept.Keeper": "dovetail.layers.kept.CachingLayer",
    "dovetail.layers.opaque.Opaque": "dovetail.layers.opaque.CompilerBoundary",
    "dovetail.layers.attention.cross.CrossAttention": (
        "dovetail_plugins.layers.attention.cross.CrossAttention"
    ),
    "dovetail.interfaces.adapter_spec": "dovetail.interfaces.data.adapter_spec",
    "dovetail.interfaces.block_hash": "dovetail.interfaces.data.block_hash",
    "dovetail.interfaces.cache_facts": "dovetail.interfaces.data.cache_facts",
    "dovetail.interfaces.checkpoint_code": "dovetail.interfaces.data.checkpoint_code",
    "dovetail.interfaces.constraint": "dovetail.interfaces.data.constraint",
    "dovetail.interfaces.encoder_spec": "dovetail.interfaces.data.encoder_spec",
    "dovetail.interfaces.headers": "dovetail.interfaces.data.headers",
    "dovetail.interfaces.kv_pieces": "dovetail.interfaces.data.kv_pieces",
    "dovetail.interfaces.media": "dovetail.interfaces.data.media",
    "dovetail.interfaces.media_settings": "dovetail.interfaces.data.media_settings",
    "dovetail.interfaces.model_facts": "dovetail.interfaces.data.model_facts",
    "dovetail.interfaces.pooling_params": "dovetail.interfaces.data.pooling_params",
    "dovetail.interfaces.pooling_spec": "dovetail.interfaces.data.pooling_spec",
    "dovetail.interfaces.profile": "dovetail.interfaces.data.profile",
    "dovetail.interfaces.sampling_params": "dovetail.interfaces.data.sampling_params",
    "dovetail.interfaces.schedule_spec": "dovetail.interfaces.data.schedule_spec",
    "dovetail.interfaces.sealed_block": "dovetail.interfaces.data.sealed_block",
    "dovetail.interfaces.selection": "dovetail.interfaces.data.selection",
    "dovetail.interfaces.spec": "dovetail.interfaces.data.spec",
    "dovetail.interfaces.step": "dovetail.interfaces.data.step",
    "dovetail.interfaces.text": "dovetail.interfaces.data.text",
    "dovetail.layers.adapters.LinearSlots": "dovetail.layers.adapters.linear.LinearSlots",
    "dovetail.layers.adapters.LowRankSlots": "dovetail.layers.adapters.linear.LowRankSlots",
    "dovetail.layers.adapters.SlotWeights": "dovetail.layers.adapters.linear.SlotWeights",
    "dovetail.layers.adapters.in_use": "dovetail.layers.adapters.linear.in_use",
    "dovetail.layers.alibi": "dovetail.layers.attention.alibi",
    "dovetail.layers.alternating": "dovetail.layers.linear.alternating",
    "dovetail.layers.attention_dtype": "dovetail.layers.attention.other_dtype",
    "dovetail.layers.block_sum": "dovetail.layers.moe.block_sum",
    "dovetail.layers.cross_attention": "dovetail.layers.attention.cross",
    "dovetail.layers.expert_adapters": "dovetail.layers.adapters.experts",
    "dovetail.layers.expert_slots": "dovetail.layers.moe.slots",
    "dovetail.layers.experts": "dovetail.layers.moe.experts",
    "dovetail.layers.joints": "dovetail.layers.linear.joints",
    "dovetail.layers.kv_scales": "dovetail.layers.attention.kv_scales",
    "dovetail.layers.latent_attention": "dovetail.layers.attention.latent",
    "dovetail.layers.latent_rows": "dovetail.layers.attention.latent_rows",
    "dovetail.layers.placement": "dovetail.layers.linear.placement",
    "dovetail.layers.rotary": "dovetail.layers.attention.rotary",
    "dovetail.layers.table_adapters": "dovetail.layers.adapters.tables",
    "dovetail.runner.worker": "dovetail_plugins.device_workers",
    "dovetail.runner.worker.device_worker": "dovetail_plugins.device_workers.device_worker",
    "dovetail.sampling.seen": "dovetail_kernels.sample.seen",
    "dovetail.testing.fake_adapters": "dovetail_testing.fakes.adapters",
    "dovetail.testing.fake_async_engine": "dovetail_testing.fakes.async_engine",
    "dovetail.testing.fake_end": "dovetail_testing.fakes.end",
    "dovetail.testing.fake_engine": "dovetail_testing.fakes.engine",
    "dovetail.testing.fake_scheduler": "dovetail_testing.fakes.scheduler",
    "dovetail.testing.fakes": "dovetail_testing.fakes.objects",
    "dovetail.testing.tiny": "dovetail_testing.tiny.transformer",
    "dovetail.testing.tiny_families": "dovetail_testing.tiny.families",
    "dovetail.testing.tiny_models": "dovetail_testing.tiny.models",
    "dovetail.testing.tiny_sizes": "dovetail_testing.tiny.sizes",
    "dovetail.testing.tiny_states": "dovetail_testing.tiny.states",
    "dovetail.testing.tiny_worker": "dovetail_testing.tiny.worker",
    "dovetail.interfaces.block_files": "dovetail_plugins.block_files",
    "dovetail.interfaces.kv_values": "dovetail_plugins.stored_values",
    "dovetail.layers.checkpoint_method": "dovetail_plugins.layers.stored.checkpoint_method",
    "dovetail.layers.class_head": "dovetail_plugins.layers.class_head",
    "dovetail.layers.cross_decoder": "dovetail_plugins.layers.cross_decoder",
    "dovetail.layers.delta": "dovetail_plugins.layers.mixers.delta",
    "dovetail.layers.dense_attention": "dovetail_plugins.layers.attention.dense",
    "dovetail.layers.encoder": "dovetail_plugins.layers.encoder",
    "dovetail.layers.gated_attention": "dovetail_plugins.layers.attention.gated",
    "dovetail.layers.head_norm": "dovetail_plugins.layers.attention.head_norm",
    "dovetail.layers.hybrid": "dovetail_plugins.layers.mixers.hybrid",
    "dovetail.layers.indexed_attention": "dovetail_plugins.layers.attention.indexed",
    "dovetail.layers.indexer": "dovetail_plugins.layers.attention.indexer",
    "dovetail.layers.layer_names": "dovetail_plugins.layers.stored.layer_names",
    "dovetail.layers.lightning": "dovetail_plugins.layers.mixers.lightning",
    "dovetail.layers.mamba": "dovetail_plugins.layers.mixers.mamba",
    "dovetail.layers.mamba2": "dovetail_plugins.layers.mixers.mamba2",
    "dovetail.layers.matrix_linear": "dovetail_plugins.layers.stored.matrix_linear",
    "dovetail.layers.media_attention": "dovetail_plugins.layers.attention.media",
    "dovetail.layers.mixed_layout": "dovetail_plugins.layers.stored.mixed_layout",
    "dovetail.layers.moe.MoE": "dovetail_plugins.layers.moe.MoE",
    "dovetail.layers.native_routing": "dovetail_plugins.layers.native_routing",
    "dovetail.layers.output_gate": "dovetail_plugins.layers.attention.output_gate",
    "dovetail.layers.patches": "dovetail_plugins.layers.patches",
    "dovetail.layers.position_bias": "dovetail_plugins.layers.attention.position_bias",
    "dovetail.layers.post_norm": "dovetail_plugins.layers.post_norm",
    "dovetail.layers.product": "dovetail_plugins.layers.product",
    "dovetail.layers.products": "dovetail_plugins.layers.stored.products",
    "dovetail.layers.query_scale": "dovetail_plugins.layers.attention.query_scale",
    "dovetail.layers.recurrent": "dovetail_plugins.layers.mixers.recurrent",
    "dovetail.layers.rounding": "dovetail_plugins.layers.stored.rounding",
    "dovetail.layers.routing": "dovetail_plugins.layers.routing",
    "dovetail.layers.shared_attention": "dovetail_plugins.layers.attention.shared",
    "dovetail.layers.sinks": "dovetail_plugins.layers.attention.sinks",
    "dovetail.layers.stored_linear": "dovetail_plugins.layers.stored.stored_linear",
    "dovetail.layers.stored_names": "dovetail_plugins.layers.stored.names",
    "dovetail.syntax": "dovetail_plugins.syntax",
    "dovetail.syntax.json_text": "dovetail.json_text",
    "dovetail.testing": "dovetail_testing",
    "dovetail.interfaces.structured_output.words": "dovetail_grammars.keywords.words",
    "dovetail.interfaces.form": "dovetail.interfaces.data.constraint",
    "dovetail.interfaces.form.Form": "dovetail.interfaces.data.constraint.Constraint",
    "dovetail.interfaces.form.Free": "dovetail.interfaces.data.constraint.FreeText",
    "dovetail.interfaces.form.Json": "dovetail.interfaces.data.constraint.JsonSchema",
    "dovetail.interfaces.form.Pattern": "dovetail.interfaces.data.constraint.Regex",
    "dovetail.interfaces.form.Sequence": "dovetail.interfaces.data.constraint.Concat",
    "dovetail.interfaces.form.decode_form": "dovetail.interfaces.data.constraint.decode_constraint",
    "dovetail.interfaces.form.divided": "dovetail.interfaces.data.constraint.separated",
    "dovetail.interfaces.form.encode_form": "dovetail.interfaces.data.constraint.encode_constraint",
    "dovetail.interfaces.form.sequence": "dovetail.interfaces.data.constraint.concat",
    "dovetail.interfaces.guided": "dovetail.interfaces.structured_output",
    "dovetail.interfaces.guided.Compiled": "dovetail.interfaces.structured_output.LoadedConstraint",
    "dovetail.interfaces.guided.Guide": "dovetail.interfaces.structured_output.AnswerConstraint",
    "dovetail.interfaces.guided.GuidedBackend": "dovetail.interfaces.structured_output."
    "StructuredOutputBackend",
    "dovetail.interfaces.guided.InvalidForm": "dovetail.interfaces.structured_output."
    "InvalidConstraint",
    "dovetail.interfaces.guided.Refusal": "dovetail.interfaces.structured_output.UnsupportedPart",
    "dovetail.registry.known": "dovetail.registry.unsupported_names",
    "dovetail.registry.known.KNOWN": "dovetail.registry.unsupported_names.UNSUPPORTED_NAMES",
    "dovetail.registry.known.reason_for": "dovetail.registry.unsupported_names.why_unsupported",
    **{
        f"dovetail.server.endpoint.{name}": f"dovetail_plugins.usage.{name}"
        for name in ("PromptTokensDetails", "StreamUsage", "Timings", "Usage", "UsageCounter")
    },
    "dovetail.server.endpoint.stream_usage": "dovetail_plugins.usage.stream_usage",
    "dovetail.server.endpoint.ServerState": "dovetail.server.endpoint.App",
    **{f"dovetail.registry.{name}": f"dovetail.registry.admin.{name}" for name in _ADMIN},
    "dovetail.testing.cuts": "dovetail_testing.text_splits",
    "dovetail.testing.drive": "dovetail_testing.scripted_steps",
    "dovetail.testing.forms": "dovetail_testing.constraint_examples",
    "dovetail.testing.fresh": "dovetail_testing.isolated_import",
    "dovetail.testing.scene": "dovetail_testing.attention_scenario",
    "dovetail.testing.walks": "dovetail_testing.random_walks",
}
"""Old dotted name -> new one: of a folder with its contents, of a module, or of a single name. A
name that moved out of a module that still exists needs a line in that module: `__getattr__ =
moved.attributes(__name__)`."""


def new_name(old: str) -> str | None:
    """Return the new name of something: by its own entry, else by its nearest parent's."""
    head, rest = old, ""
    while head:
        if head in NAMES:
            return NAMES[head] + rest
        head, _, last = head.rpartition(".")
        rest = f".{last}{rest}"
    return None


def attributes(module: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__` for names that have moved out of it."""

    def find(name: str) -> Any:
        new = new_name(f"{module}.{name}")
        if new is None or name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, attribute = new.rpartition(".")
        found = getattr(importlib.import_module(home), attribute)
        _warn(f"{module}.{name}", new)
        return found

    return find


class _OldModules(MetaPathFinder, Loader):
    """Finds modules by their old names. The last finder: for names that no other one finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has been renamed."""
        if new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Forward the attributes of the old module to the new one. Mutates: module"""
        new = new_name(module.__name__)
        assert new is not None
        now = importlib.import_module(new)
        _warn(module.__name__, new)
        module.__doc__ = now.__doc__
        vars(module)["__all__"] = [name for name in dir(now) if not name.startswith("_")]
        vars(module)["__getattr__"] = attributes(module.__name__)


def _warn(old: str, new: str) -> None:
    """Warn about an entry of the table, only once for a folder and everything in it."""
    if old in NAMES:
        what = f"{old} is {new} now; {PAGE} says what changed."
        warnings.warn(what, FutureWarning, stacklevel=3)


def install() -> None:
    """Make old names importable. Mutates: sys.meta_path, once"""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
