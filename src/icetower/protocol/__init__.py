"""Wire models of the Iceberg REST specification and of the control API. Pure: no I/O."""
