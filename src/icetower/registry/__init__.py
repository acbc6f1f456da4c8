"""Who may speak to the tower, with which secret, and the contracts in force with their versions.

`registry` is the store, `principals` the value it hands out, `schema` its tables, `sql` makes them by migration.
"""
