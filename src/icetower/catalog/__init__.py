"""Upstream catalogs and storage: all reading and writing of tables goes through `ports`."""
