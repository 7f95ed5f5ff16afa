"""Exchanges of tokens between engines that share their experts."""
