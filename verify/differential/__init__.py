"""The conflict model against Iceberg itself: the same cases are run by both, and must end alike."""
