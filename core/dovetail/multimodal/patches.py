"""Cuts the frames of a video into the patches that Qwen's encoders read, two frames per patch.

transformers' own video processors need torchvision. So frames are resized, normed and cut here with
the same settings, and the model's own processor writes the text that represents them.
Source: Wang et al., Qwen2-VL, 2024; video_preprocessor_config.json of Qwen2-VL and Qwen3-VL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.multimodal.content import Video
from dovetail.multimodal.extra import package

if TYPE_CHECKING:
    import torch

FILES = (
    ("video_preprocessor_config.json", None),
    ("processor_config.json", "video_processor"),
    ("preprocessor_config.json", None),
)
"""Files with a checkpoint's video settings; the first that has some counts."""
BY_VOLUME = ("Qwen3VLProcessor",)
"""Processors that limit the pixels of all frames together; others limit those of each."""
PLAIN_RATE = 24.0
"""Assumed frames per second of a video without a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSettings:
    """How frames become patches. Units: bounds in pixels, of a frame, or with `by_volume` of all"""

    patch: int
    frames_each: int
    merged: int
    least_pixels: int
    most_pixels: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    by_volume: bool

    @classmethod
    def of(cls, processor: Any, folder: str | Path) -> FrameSettings:
        """Return the settings of a checkpoint; its image settings if it has none for videos."""
        stored = stored_settings(Path(folder), "patch_size")
        pictures = processor.image_processor
        size = {**dict(getattr(pictures, "size", None) or {}), **(stored.get("size") or {})}
        by_volume = type(processor).__name__ in BY_VOLUME
        return cls(
            patch=int(stored.get("patch_size") or pictures.patch_size),
            frames_each=int(stored.get("temporal_patch_size") or pictures.temporal_patch_size),
            merged=int(stored.get("merge_size") or pictures.merge_size),
            least_pixels=int(stored.get("min_pixels") or size["shortest_edge"]),
            most_pixels=int(stored.get("max_pixels") or size["longest_edge"]),
            mean=tuple(stored.get("image_mean") or pictures.image_mean),
            deviation=tuple(stored.get("image_std") or pictures.image_std),
            by_volume=by_volume,
        )

    @property
    def part(self) -> SimpleNamespace:
        """Return the attributes that a processor reads from its video part."""
        return SimpleNamespace(merge_size=self.merged, temporal_patch_size=self.frames_each)

    def size_of(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to resize frames to."""
        factor = self.patch * self.merged
        bounds = {"min_pixels": self.least_pixels, "max_pixels": self.most_pixels}
        if self.by_volume:
            from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as fit

            each = self.frames_each
            found: tuple[int, int] = fit(
                max(num_frames, each), height, width, each, factor=factor, **bounds
            )
            return found
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        each_size: tuple[int, int] = smart_resize(height, width, factor=factor, **bounds)
        return each_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFrames:
    """A video's patches, its grid (time, height, width in patches), its text, and the seconds per
    step in time."""

    patches: torch.Tensor
    grid: torch.Tensor
    text: str
    step_s: float


def read_frames(processor: Any, settings: FrameSettings, content: Any) -> ReadFrames:
    """Return a video in its model's input form. Raises: ValueError if it is not a video"""
    import torch
    from transformers.video_utils import VideoMetadata

    video = as_video(content)
    patches, grid = patches_of(video.frames, settings)
    facts = VideoMetadata(
        total_num_frames=video.num_frames,
        fps=video.fps or PLAIN_RATE,
        frames_indices=list(video.frame_indices),
    )
    inputs: Mapping[str, Any] = {"video_grid_thw": grid[None], "video_metadata": [facts]}
    text = processor.replace_video_token(inputs, video_idx=0)
    return ReadFrames(
        patches=patches,
        grid=torch.as_tensor(grid),
        text=text,
        step_s=settings.frames_each / facts.sampled_fps,
    )


def patches_of(frames: Any, settings: FrameSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches of frames, one row each, and their grid. Repeats the last frame if needed.

    Shapes: frames [F, h, w, 3] uint8 -> [t * height * width, 3 * frames * patch * patch], [3]
    """
    import numpy as np
    import torch

    images = package("PIL.Image")
    height, width = settings.size_of(len(frames), *frames.shape[1:3])
    resized = np.stack(
        [
            np.asarray(images.fromarray(one).resize((width, height), images.Resampling.BICUBIC))
            for one in frames
        ]
    )
    each, patch, merged = settings.frames_each, settings.patch, settings.merged
    x = torch.from_numpy(resized).float().div_(255)
    x = (x - torch.tensor(settings.mean)) / torch.tensor(settings.deviation)
    x = torch.cat([x, x[-1:].expand(-len(x) % each, -1, -1, -1)])
    grid = (len(x) // each, height // patch, width // patch)
    x = x.view(grid[0], each, grid[1] // merged, merged, patch, grid[2] // merged, merged, patch, 3)
    x = x.permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return x.reshape(grid[0] * grid[1] * grid[2], -1), torch.tensor(grid)


def as_video(content: Any) -> Video:
    """Return a video; plain frames become one with default facts. Raises: ValueError"""
    import numpy as np

    if isinstance(content, Video):
        return content
    found = np.asarray(content)
    if found.ndim != 4 or found.shape[-1] != 3 or found.dtype != np.uint8 or not len(found):
        raise ValueError(f"frames are [F, height, width, 3] uint8, not {found.shape} {found.dtype}")
    count = len(found)
    return Video(frames=found, frame_indices=tuple(range(count)), num_frames=count, fps=PLAIN_RATE)


def stored_settings(folder: Path, field: str) -> dict[str, Any]:
    """Return a checkpoint's video settings, from the first file with `field`; {} if none has it."""
    for file, part in FILES:
        path = folder / file
        if path.is_file():
            settings = read_json(path)
            found = settings.get(part) if part else settings
            if isinstance(found, dict) and field in found:
                return found
    return {}
