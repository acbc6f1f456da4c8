"""Iceberg's own structures: metadata as plain JSON, manifest lists, manifests, and the `Change` of a commit. Pure."""
