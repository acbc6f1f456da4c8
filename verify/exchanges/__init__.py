"""Recorded HTTP exchanges of real clients, kept as data: what a tower answers must not change unnoticed."""
