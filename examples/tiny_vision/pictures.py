"""Pictures of coloured digits, and questions about them.

A picture is a digit of one colour on a dark ground. Some pairs of digit and colour are held out:
no picture of the training set has them. Beside named colours the training set has digits in inks of
any colour, or a model would learn which digits a colour never has.
"""

import base64
import io
from dataclasses import dataclass
from functools import cache
from random import Random

from PIL import Image, ImageDraw, ImageFont

SIZE = 40
COLOURS = {
    "red": (210, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
    "purple": (140, 50, 170),
    "orange": (240, 140, 30),
    "white": (250, 250, 250),
    "cyan": (60, 210, 220),
}
QUESTIONS = ("Which digit is it?", "Which colour is it?", "What is in the picture?")
UNNAMED = ""
"""A colour without a name: what is told of such a picture ends behind the digit."""
LEAST_BRIGHT = 150
"""The largest part of an unnamed ink, of 255, is no less, so that it shows on a dark ground."""
HELD_OUT_SHARE = 6
"""One of so many pairs of digit and colour is held out."""


@dataclass(frozen=True)
class Scene:
    """What a picture shows."""

    digit: int
    colour: str

    @property
    def is_held_out(self) -> bool:
        """Return whether it is for questions alone."""
        return (self.digit * 5 + list(COLOURS).index(self.colour)) % HELD_OUT_SHARE == 0

    def answer(self, question: str) -> str:
        """Return the answer to one of the QUESTIONS."""
        told = (str(self.digit), self.colour, f"a {self.digit} in {self.colour}")
        return told[QUESTIONS.index(question)]


def scene(rng: Random, *, held_out: bool) -> Scene:
    """Return a scene by chance."""
    while True:
        made = Scene(rng.randrange(10), rng.choice(list(COLOURS)))
        if made.is_held_out == held_out:
            return made


def unnamed_scene(rng: Random) -> Scene:
    """Return a digit in an ink of any colour."""
    return Scene(rng.randrange(10), UNNAMED)


def _ink(colour: str, rng: Random) -> tuple[int, ...]:
    """Return an ink: near a named colour, or any that can be seen."""
    if colour:
        return tuple(min(255, max(0, part + rng.randint(-15, 15))) for part in COLOURS[colour])
    while True:
        ink = tuple(rng.randint(0, 255) for _ in range(3))
        if max(ink) >= LEAST_BRIGHT:
            return ink


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def picture(one: Scene, rng: Random) -> Image.Image:
    """Return a picture of a scene: where it stands, its size and its slant are chance."""
    grey = rng.randint(10, 50)
    ground = tuple(min(255, max(0, grey + rng.randint(-8, 8))) for _ in range(3))
    ink = _ink(one.colour, rng)
    made = Image.new("RGB", (SIZE, SIZE), ground)
    layer = Image.new("L", (SIZE, SIZE), 0)
    font = _font(rng.randint(30, 36))
    place = (SIZE // 2 + rng.randint(-1, 1), SIZE // 2 + rng.randint(-1, 1))
    ImageDraw.Draw(layer).text(place, str(one.digit), fill=255, font=font, anchor="mm")
    layer = layer.rotate(rng.uniform(-4, 4), resample=Image.Resampling.BILINEAR)
    made.paste(Image.new("RGB", (SIZE, SIZE), ink), mask=layer)
    return made


def as_url(made: Image.Image) -> str:
    """Return a picture as a data: URL."""
    file = io.BytesIO()
    made.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
