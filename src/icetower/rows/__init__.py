"""Rows at the door: what agents send as rows, the tower writes as data files. Nothing of it reads or writes storage."""
