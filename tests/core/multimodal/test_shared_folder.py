"""The folder of media in shared memory: this user's alone, and no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.multimodal.kept import SharedMedia


def test_a_folder_that_is_a_link_or_another_user_s_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="link"):
        SharedMedia(str(tmp_path / "link" / "a"), 1 << 20, 1 << 20)
    base = tmp_path / "base"
    base.mkdir()
    (base / "a").symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="link"):
        SharedMedia(str(base / "a"), 1 << 20, 1 << 20)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user"):
        SharedMedia(str(base / "b"), 1 << 20, 1 << 20)
    assert not list(elsewhere.iterdir())


def test_cleaning_up_follows_no_link_and_touches_no_folder_of_others(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("")
    (elsewhere / "letter").write_text("mine")
    base = tmp_path / "base"
    for name in ("left", "linked"):
        (base / name).mkdir(parents=True)
    (base / "left" / "lock").write_text("")
    (base / "linked" / "lock").symlink_to(elsewhere / "lock")
    (base / "away").symlink_to(elsewhere)
    media = SharedMedia(str(base / "own"), 1 << 20, 1 << 20)
    assert (elsewhere / "letter").read_text() == "mine"
    assert not (base / "left").exists() and (base / "linked").exists()
    media.close()
