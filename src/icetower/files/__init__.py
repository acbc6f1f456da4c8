"""Reads the files that a commit names: manifests and their lists, delete files, the footers of data files."""
