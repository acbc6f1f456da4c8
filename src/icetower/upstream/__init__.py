"""The upstream catalog, which holds the heads of tables: its port, and the SQL adapter."""
