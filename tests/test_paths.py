"""Does a path lie under a place? However the beginnings of both are spelled, and by nothing but whole names."""

from __future__ import annotations

import pytest

from icetower.paths import is_under, plain_path

PLACES = """\
file:///w/t/data/a      file:///w/t         yes
file:/w/t/data/a        file:///w/t/        yes
/w/t/data/a             file:///w/t         yes
file://localhost/w/t/a  /w/t                yes
FILE:///w/t/a           /w/t                yes
file:////w/t/a          /w/t                no
file://host/w/t/a       /w/t                no
file:///w/t2/a          file:///w/t         no
file:///w/t             file:///w/t         no
file:///w/t/../u/a      file:///w/t         no
file:///w/t/%2e%2e/a    file:///w/t         no
file:///w/t/a..b        file:///w/t         yes
file:///w/t%20u/a       file:///w/t%20u     yes
s3://b/t/a              s3://b/t            yes
s3a://b/t/a             s3://b/t            yes
s3://b/t/a              s3n://b/t           yes
S3A://b/t/a             s3://b/t            yes
s3://b2/t/a             s3://b/t            no
gs://b/t/a              s3://b/t            no
gcs://b/t/a             gs://b/t            yes
abfs://c@h/t/a          abfss://c@h/t       yes
w/t/a                   /w/t                no
"""


@pytest.mark.parametrize("line", PLACES.splitlines())
def test_what_lies_under_a_place(line: str) -> None:
    path, root, expected = line.split()
    assert is_under(path, root) == (expected == "yes")


@pytest.mark.parametrize("line", PLACES.splitlines())
def test_a_plain_path_is_its_own_plain_path(line: str) -> None:
    for path in line.split()[:2]:
        assert plain_path(plain_path(path)) == plain_path(path)
