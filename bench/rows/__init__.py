"""Rows by many agents into one table: the rows door beside other ways to write few rows at a time."""
