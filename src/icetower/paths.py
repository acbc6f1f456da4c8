"""Paths of files, compared however they are spelled."""

from __future__ import annotations

import re
from urllib.parse import unquote

_FAMILIES = (("s3", "s3a", "s3n"), ("gs", "gcs"), ("abfss", "abfs", "wasbs", "wasb"))
FAMILY_OF = {scheme: names[0] for names in _FAMILIES for scheme in names}
"""Schemes that are several names of one storage, with the one that is taken for all of them."""


def is_under(path: str, root: str) -> bool:
    """Whether `path` lies under the directory `root`, however the two are spelled. What has `..` in it lies nowhere."""
    if ".." in unquote(path).split("/"):
        return False
    return plain_path(path).startswith(plain_path(root).rstrip("/") + "/")


def lies_in(path: str, folder: str) -> bool:
    """Whether `path` is of a file in `folder` itself, and in none of its folders, however the two are spelled."""
    return is_under(path, folder) and plain_path(path).rpartition("/")[0] == plain_path(folder).rstrip("/")


def plain_path(path: str) -> str:
    """A path without what is spelled in several ways: the beginning of local files' URIs, and kinds of URIs."""
    if path.startswith("/"):
        return path
    scheme, colon, rest = path.partition(":")
    scheme = scheme.lower() if colon else scheme
    if scheme == "file":
        return re.sub(r"^//(localhost)?(?=/)", "", rest)
    return f"{FAMILY_OF.get(scheme, scheme)}{colon}{rest}"
