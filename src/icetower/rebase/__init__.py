"""May a stale commit be rebased, and is anything in its way? Pure."""
