"""The isolation contract: what an agent may do to which tables, and which partitions it owns. Pure.

At each commit: `model` holds the contract, `document` reads and writes it as YAML, `terms` and `values` understand its
regions by a table's columns, `owning` says what is owned, `check` compares what a commit touches with that.

Before it is in force: `schema` is for editors; `axes` and `boxes` make sets of rows of regions, so that `overlaps`
between agents, `gaps` and the `differences` of two versions can be found; `review` and `references` find what doesn't
do what was meant, by itself and against tables. `grants` is what it comes to in another catalog.
"""
