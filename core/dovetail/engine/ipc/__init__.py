"""Sockets and in-process channels that messages travel over."""
