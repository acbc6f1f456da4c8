"""What is watched over while agents work, and who is told of it: retry budgets, escalations, requests for partitions.

Nothing here holds a commit up: what has happened is counted in memory, what waits for a person is kept in the
registry's database, and word of it is sent afterwards.
"""
