"""The history auditor: what a table's snapshots prove about the commits that made them. Reads tables, changes nothing.

`auditor.audit` walks a branch in the order of its commits and returns a `findings.Report`.
"""
