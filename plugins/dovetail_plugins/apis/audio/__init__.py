"""Transcription and translation of speech."""
