"""How the ledger's lookups and writes cost, from a thousand keys to a hundred million."""
