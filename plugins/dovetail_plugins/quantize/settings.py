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
        help="text to calibrate with: gptq and awq need it, GGUF's types weigh inputs by it, "
        "others tell errors of outputs by it",
        aliases=("--calibrate",),
    )
    calibration_tokens: int = flag(65536, ge=1, help="most tokens of the text that are used")
    imatrix: str | None = flag(
        None,
        metavar="FILE",
        help="llama.cpp's importance matrix (GGUF) in place of a text, for GGUF's types",
    )
    save_imatrix: str | None = flag(
        None, metavar="FILE", help="importance matrix to write from the calibration text"
    )
    report: str | None = flag(None, metavar="FILE", help="JSON file for the errors of every matrix")


def check_flags(flags: QuantizeFlags) -> None:
    """Raise ConfigError for missing flags."""
    for name, value in (("--method", flags.method), ("--out", flags.out)):
        if not value:
            fix = "dovetail quantize MODEL --method int8 --out DIR"
            raise ConfigError("must be given.", where=name, fix=fix)


def check_text(flags: QuantizeFlags, capabilities: frozenset[str]) -> None:
    """Raise ConfigError if the method needs a text and there is none, or importances cannot be."""
    for name, value in (("--imatrix", flags.imatrix), ("--save-imatrix", flags.save_imatrix)):
        if value and "squares" not in capabilities:
            raise ConfigError(
                f"{flags.method} has no use for importances.", where=name, fix="leave it out."
            )
    if flags.imatrix and flags.calibration:
        raise ConfigError(
            "importances come from a file or from a text, not from both.",
            where="--imatrix",
            fix="leave out --calibration.",
        )
    if flags.save_imatrix and not flags.calibration:
        raise ConfigError(
            "there is no text to take importances from.",
            where="--save-imatrix",
            fix="add --calibration FILE.",
        )
    if "calibrated" in capabilities and not flags.calibration:
        raise ConfigError(
            f"{flags.method} needs a calibration text.",
            where="--calibration",
            fix="give a text file similar to the model's later input.",
        )
