"""The gate of the tower, held against an oracle that knows every row."""
