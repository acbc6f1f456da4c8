"""The HTTP face: Iceberg's REST catalog protocol, the control API, authentication."""
