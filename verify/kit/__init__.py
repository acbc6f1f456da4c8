"""Fakes and clients that tests and the programs of verify/ and bench/ share.

- `storage.MemoryStorage`: files in memory, with failures on request; it notes what was read.
- `clock.Clock`: time and everything random, under the test's control.
- `upstream.FaultyUpstream`: the real SQL upstream, with something that happens to each swap.
- `tower_process.TowerProcess`: a real `icetower serve`.
- `postgres_cluster.running`: a PostgreSQL server on loopback, in a temporary directory.
- `forger.Forger`: a client that writes manifests as it likes, honest or not.
"""
