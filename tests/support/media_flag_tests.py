"""The tests of the flags of media and of prompts that are no text. Data for flag_tests.py."""

from __future__ import annotations

READER = "plugins/test_media_reader.py"
IMAGES = "plugins/models/test_media_combined.py"
MEDIA = "core/config/rules/test_media_settings.py"
FETCHED = "core/multimodal/test_fetch.py"
DECODED = "core/multimodal/test_decode.py"
HOSTILE = "core/multimodal/test_hostile.py::test_it_ends_its_request_soon"

MEDIA_FLAG_TESTS: dict[str, tuple[str, ...]] = {
    "allowed_local_media_path": (
        f"{MEDIA}::test_where_media_may_come_from",
        f"{DECODED}::test_files_of_the_allowed_local_media_path",
        HOSTILE,
    ),
    "allowed_media_domains": (
        f"{MEDIA}::test_where_media_may_come_from",
        f"{FETCHED}::test_only_named_hosts_are_asked_where_any_are_named",
    ),
    **dict.fromkeys(
        ("audio_fetch_timeout", "image_fetch_timeout", "video_fetch_timeout"),
        (f"{MEDIA}::test_bounds_of_what_is_fetched", HOSTILE),
    ),
    "disable_chunked_mm_input": (f"{IMAGES}::test_an_image_that_no_step_computes_whole",),
    "interleave_mm_strings": ("e2e/test_media.py::test_a_template_of_text_alone",),
    "io_processor_plugin": ("e2e/test_io_processor.py::test_over_http_and_offline",),
    "mm_encoder_tp_mode": (f"{IMAGES}::test_over_ranks_as_alone",),
    "mm_processor_cache_type": (f"{READER}::test_a_cache_in_shared_memory",),
    "mm_shm_cache_max_object_size_mb": (f"{READER}::test_a_cache_in_shared_memory",),
    "video_pruning_rate": ("plugins/models/test_video.py::test_without_what_stands_still",),
    "skip_mm_profiling": (f"{READER}::test_memory_is_left_for_encodings",),
    "enable_prompt_embeds": ("e2e/test_prompt_embeds.py::test_what_is_refused_offline",),
    "limit_mm_per_prompt": (
        f"{MEDIA}::test_limit_mm_per_prompt",
        f"{DECODED}::test_counts_are_checked_before_anything_is_fetched",
        f"{DECODED}::test_sizes_above_the_limits_are_refused",
    ),
    "mm_processor_cache_gb": (f"{READER}::test_what_is_read_once_is_kept",),
    "mm_processor_kwargs": (f"{READER}::test_options_of_the_processor",),
    "max_audio_clip_filesize_mb": (f"{MEDIA}::test_bounds_of_what_is_fetched", HOSTILE),
    "media_io_kwargs": (
        f"{MEDIA}::test_media_io_kwargs",
        f"{DECODED}::test_what_is_transparent_has_the_wanted_colour_behind_it",
        f"{DECODED}::test_fps_lowers_the_number_of_frames_and_minus_one_takes_all",
    ),
    "media_url_allow_redirects": (
        f"{MEDIA}::test_where_media_may_come_from",
        f"{FETCHED}::test_redirects_are_followed_where_they_are_allowed",
    ),
}
"""Honoured flag -> places."""
