"""What was committed under which key, what was answered, and every attempt: hot, durable and bounded.

The table itself carries its keys (trap K1); the ledger is what is quick to ask, and what outlives expired snapshots.
"""
