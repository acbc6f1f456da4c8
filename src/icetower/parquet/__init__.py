"""Reads Parquet's footers, statistics and texts from bytes, with care: the bytes are a client's. Pure."""
