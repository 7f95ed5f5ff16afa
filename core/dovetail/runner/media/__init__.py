"""Encodings of images, video and audio on a rank."""
