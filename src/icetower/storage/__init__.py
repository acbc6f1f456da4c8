"""The storage, which holds the files of tables: its port, and the adapters."""
