"""The command line: one file a group of commands."""

from icetower.cli.app import main

__all__ = ["main"]
