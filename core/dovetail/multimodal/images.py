"""Images: decodes several file formats to 8-bit RGB.

Runs in the `worker` process. Sizes are checked in the header, before a pixel is decoded.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import ImageOptions, MediaLimit
from dovetail.multimodal.containers import is_drawing
from dovetail.multimodal.extra import package

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
HIGH_BYTE = 8


def decode_image(
    data: bytes, options: ImageOptions, limit: MediaLimit
) -> numpy.ndarray[Any, numpy.dtype[numpy.uint8]]:
    """Return the pixels of an image, upright; for an animation those of its first frame.

    Shapes: [height, width, 3]. Raises: RequestError
    """
    if is_drawing(data):
        raise _invalid("SVG drawings are not supported.", "send it as PNG.")
    pillow = package("PIL.Image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # checked here
        try:
            with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                check_size(width, height, options, limit)
                return _pixels(image, options.rgba_background_color)
        except RequestError:
            raise
        except pillow.DecompressionBombError:
            raise _invalid("the image has too many pixels.") from None
        except pillow.UnidentifiedImageError:
            names = ", ".join(FORMATS)
            raise _invalid(
                "the data are not an image of a known format.", f"send {names}."
            ) from None
        except MemoryError:
            raise _invalid("the image needs too much memory.") from None
        except Exception as error:  # a damaged file: Pillow's exceptions differ by format
            raise _invalid(f"the image is damaged: {_words(error)}.") from None


def check_size(width: int, height: int, options: ImageOptions, limit: MediaLimit) -> None:
    """Raise RequestError unless an image of this size may be decoded."""
    if width < 1 or height < 1:
        raise _invalid("the image has no pixels.")
    if width * height > options.max_pixels:
        raise _invalid(
            f"the image has {width} x {height} pixels; at most {options.max_pixels} are taken.",
            "send it smaller.",
        )
    widest, highest = limit.width or width, limit.height or height
    if width > widest or height > highest:
        raise _invalid(
            f"the image has {width} x {height} pixels; at most {widest} x {highest} are taken "
            "(--limit-mm-per-prompt).",
            "send it smaller.",
        )


def _pixels(image: Any, background: tuple[int, ...]) -> numpy.ndarray[Any, Any]:
    pillow, operations = package("PIL.Image"), package("PIL.ImageOps")
    image.load()
    image = operations.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _gray(numpy.asarray(image) >> HIGH_BYTE)
    if image.mode in ("I", "F"):
        return _gray(numpy.asarray(image).clip(0, 255))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        front = image.convert("RGBA")
        behind = pillow.new("RGBA", front.size, (*background, 255))
        image = pillow.alpha_composite(behind, front)
    return numpy.asarray(image.convert("RGB"))


def _gray(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    return numpy.repeat(values.astype(numpy.uint8)[..., None], 3, axis=-1)


def _invalid(what: str, fix: str | None = None) -> RequestError:
    return RequestError(what, fix=fix, code="media_invalid")


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")[:200]
