"""How long the scan for orphans takes, beside Iceberg's own procedure."""
