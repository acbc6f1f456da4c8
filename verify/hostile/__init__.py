"""Hostile inputs by generators that know the formats: run.py says how."""
