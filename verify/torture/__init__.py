"""Crash safety: a deterministic simulation of the commit engine, and real towers that are killed at every step."""
