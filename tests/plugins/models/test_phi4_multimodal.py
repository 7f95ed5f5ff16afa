"""Phi-4-multimodal against transformers: what its encoders make of images and sound, and its text.

Its processor of images needs torchvision; with it `make sweep` compares greedy text.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.errors import RequestError
from dovetail.multimodal.prompt import MediaPrompt, Medium, placed
from dovetail_testing.harness import PagedModel
from support.tiny_wholes import whole_config

CROP = 448
SEEN = ((32, 32), (32, 20), (10, 32))
"""Lines and columns of patches of a crop that show something."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return dovetail's model and transformers'."""
    import transformers

    from dovetail_testing.tiny.models import randomize

    folder = tmp_path_factory.mktemp("phi4")
    config = whole_config("phi4_multimodal")
    config.architectures = ["Phi4MultimodalForCausalLM"]
    model = transformers.Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager")
    randomize(model, seed=1)
    model.save_pretrained(folder)
    return PagedModel.load(folder, model_name="Phi4MultimodalForCausalLM"), model.eval()


def image(lines: int, columns: int) -> dict[str, torch.Tensor]:
    """Return the features of an image of one crop, beside which stands the whole."""
    pixels = torch.randn(1, 2, 3, CROP, CROP, generator=torch.Generator().manual_seed(lines))
    mask = torch.zeros(1, 2, 32, 32)
    mask[:, 0] = 1
    mask[:, 1, :lines, :columns] = 1
    sizes = torch.tensor([[CROP, CROP]])
    return {"image_pixel_values": pixels, "image_sizes": sizes, "image_attention_mask": mask}


def assert_alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare beside the largest number: here some are 160 where most are 26, and transformers'
    own differ from those in float64 by 0.003."""
    scale = wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("seen", SEEN)
def test_images(models: tuple[Any, Any], seen: tuple[int, int]) -> None:
    mine, theirs = models
    features = image(*seen)
    with torch.inference_mode():
        (vectors,) = mine.module.encode("image", [features])
        encoder = theirs.model.embed_tokens_extend.image_embed
        ids = torch.full((1, len(vectors)), theirs.config.vision_config.image_token_id)
        wanted = encoder(ids, torch.zeros(1, len(vectors), 32), **features)[0]
    assert_alike(vectors, wanted)


def test_sound(models: tuple[Any, Any]) -> None:
    mine, theirs = models
    features = {
        "audio_input_features": torch.randn(1, 98, 80, generator=torch.Generator().manual_seed(3)),
        "audio_embed_sizes": torch.tensor([13]),
    }
    with torch.inference_mode():
        (vectors,) = mine.module.encode("audio", [features])
        encoder = theirs.model.embed_tokens_extend.audio_embed
        ids = torch.full((1, 13), theirs.config.audio_config.audio_token_id)
        wanted = encoder(ids, torch.zeros(1, 13, 32), **features)[0]
    assert_alike(vectors, wanted)


def test_text(models: tuple[Any, Any]) -> None:
    mine, theirs = models
    ids = [5, 17, 40, 7, 300, 12]
    with torch.inference_mode():
        wanted = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(mine.forward([(0, ids)])[0], wanted, atol=1e-3, rtol=1e-3)


class _OneKind:
    """A reader of a model that takes one kind of media in a prompt."""

    kinds = frozenset({"image", "audio"})
    takes_one_kind = True


def test_images_and_sound_in_one_prompt_are_refused() -> None:
    """Sound beside images goes through layers of its own."""
    media = tuple(Medium(kind=kind, key="", content=lambda: None) for kind in ("image", "audio"))
    with pytest.raises(RequestError, match="media of one kind in a prompt, not audio and image"):
        placed(MediaPrompt(text="", media=media), _OneKind(), lambda text, **_: [])  # type: ignore[arg-type]
