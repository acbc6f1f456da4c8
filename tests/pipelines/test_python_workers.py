"""Spark's Python workers read the directory of a zip file once, and again when the file has changed."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.pipelines import python_workers

IN_313 = pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself reads them when it needs them")


def zipped(path: Path, *modules: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for module in modules:
            archive.writestr(f"{module}.py", f"name = '{module}'\n")


@IN_313
def test_a_zip_file_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", zipimport.zipimporter.invalidate_caches)
    archive = tmp_path / "modules.zip"
    zipped(archive, "of_a_zip_1")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("of_a_zip_1").name == "of_a_zip_1"
    reads: list[str] = []
    reading: Any = zipimport.zipimporter.invalidate_caches.__globals__
    read_directory = reading["_read_directory"]
    monkeypatch.setitem(reading, "_read_directory", lambda path: reads.append(path) or read_directory(path))

    python_workers.read_once()
    for _ in range(3):
        importlib.invalidate_caches()
    assert str(archive) not in reads
    zipped(archive, "of_a_zip_1", "of_a_zip_2")
    importlib.invalidate_caches()
    importlib.invalidate_caches()
    assert reads.count(str(archive)) == 1
    assert importlib.import_module("of_a_zip_2").name == "of_a_zip_2"
    archive.unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("of_a_zip_3")
    for module in ("of_a_zip_1", "of_a_zip_2"):
        del sys.modules[module]


@pytest.mark.spark
def test_workers_of_a_job_do_not_read_sparks_jars_for_each_task(spark: SparkSession) -> None:
    def of_a_worker(_: Iterable[int]) -> Iterator[tuple[str, list[str]]]:
        yield zipimport.zipimporter.invalidate_caches.__qualname__, [*sys.path_importer_cache]

    ((method, path),) = spark.sparkContext.parallelize([1], 1).mapPartitions(of_a_worker).collect()
    assert method.startswith("read_once.") == (sys.version_info < (3, 13))
    assert not [each for each in path if "iceberg-spark-runtime" in each]
