"""A model of Iceberg's client: would it, retrying, be let through? Pure. The server does not import it."""
