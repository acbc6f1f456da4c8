"""The isolation contract: what an agent may do to which tables, and which partitions it owns. Pure.

`model` holds the contract and reads it from YAML, `values` understands the values of a region by partition field,
`check` compares what a commit touches with what is owned.
"""
