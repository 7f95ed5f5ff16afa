"""From a config and the flags of `dovetail quantize` to a job that can be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail_plugins.quantize.settings import QuantizeFlags, check_flags, check_text

if TYPE_CHECKING:
    from dovetail_plugins.quantize.job import QuantizeJob


def prepared(
    config: Config,
    flags: QuantizeFlags,
    *,
    is_shown: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> QuantizeJob:
    """Return the job. `is_shown`: a bar may be shown; `tell` gets the number of matrices that are
    done and of all. Raises: ConfigError"""
    check_flags(flags)
    own: dict[str, Any] = {"device": registry.admin.own("platform", "cpu")}
    if not flags.calibration:
        own["skip_tokenizer_init"] = True
    spec = resolve(config.with_fields(own, origin="quantize"))
    options = config.plugin.options_of("quantizer")
    method = registry.choose(
        "quantizer", flags.method, query=spec.run.model, options=options, where="--method"
    )
    check_text(flags, registry.admin.load_selection(method).capabilities)
    files = {"imatrix": flags.imatrix, "save_imatrix": flags.save_imatrix}
    added = {name: file for name, file in files.items() if file}
    method = structs.replace(method, options={**method.options, **added})

    from dovetail_plugins.quantize.job import QuantizeJob  # torch: after the checks
    from dovetail_plugins.quantize.text import windows_of

    windows = None
    if flags.calibration:
        windows = windows_of(
            flags.calibration,
            registry.make(spec.tokenizer, spec.tokenizer_path),
            num_tokens=flags.calibration_tokens,
            longest_tokens=spec.run.model.max_position_tokens,
        )
    return QuantizeJob(
        spec.run,
        method,
        group=flags.group,
        windows=windows,
        is_shown=is_shown and spec.run.shows_progress,
        tell=tell,
    )
