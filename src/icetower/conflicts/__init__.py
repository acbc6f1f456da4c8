"""Which changes may coexist. Pure."""
