"""What the tests of this repository share: fakes, servers in processes, files that others wrote.

On pytest's path (`pythonpath` in pyproject.toml), in no wheel. What authors of plugins may use as
well is in `dovetail_testing`.
"""
