"""Histories for the auditor: made by Iceberg's own Java library, and long random ones made as bytes."""
