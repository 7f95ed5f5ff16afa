"""The flags of `dovetail quantize`, in addition to the engine's."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag
from dovetail.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeFlags:
    """A checkpoint in, a quantized one out."""

    method: str = flag(
        "",
        kind="quantizer",
        default_note="must be given",
        help="how matrices are quantized, and in which layout",
    )
    out: str = flag("", metavar="DIR", default_note="must be given", help="new folder to write")
    group: int | None = flag(
        None,
        metavar="N",
        default_note="the largest of 128, 64, 32 that fits all layers",
        help="inputs that share a scale, of methods with groups",
    )
    calibration: str | None = flag(
        None,
        metavar="FILE",
        help="text to calibrate with: gptq and awq need it, others tell errors of outputs by it",
    )
    calibration_tokens: int = flag(65536, ge=1, help="most tokens of the text that are used")
    report: str | None = flag(None, metavar="FILE", help="JSON file for the errors of every matrix")


def check_flags(flags: QuantizeFlags) -> None:
    """Raise ConfigError for missing flags."""
    for name, value in (("--method", flags.method), ("--out", flags.out)):
        if not value:
            fix = "dovetail quantize MODEL --method int8 --out DIR"
            raise ConfigError("must be given.", where=name, fix=fix)


def check_text(flags: QuantizeFlags, capabilities: frozenset[str]) -> None:
    """Raise ConfigError if the method needs a text and there is none."""
    if "calibrated" in capabilities and not flags.calibration:
        raise ConfigError(
            f"{flags.method} needs a calibration text.",
            where="--calibration",
            fix="give a text file similar to the model's later input.",
        )
