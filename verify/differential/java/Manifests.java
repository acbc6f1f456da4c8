package org.apache.iceberg;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.io.FileIO;

/** The entries of the manifests of one case. A manifest never changes, so each is read once. */
final class Manifests {
  /** What entries inherit from the manifest list, beside the path: a list of a later format may give row ids. */
  private record Key(String path, long sequenceNumber, Long snapshotId, Long firstRowId) {}

  private final Map<Key, List<ManifestEntry<?>>> read = new HashMap<>();

  /** All entries in their order, deleted ones too, with everything that they inherit. They are not to be changed. */
  List<ManifestEntry<?>> entries(ManifestFile manifest, FileIO io, Map<Integer, PartitionSpec> specs) {
    Key key = new Key(manifest.path(), manifest.sequenceNumber(), manifest.snapshotId(), manifest.firstRowId());
    return read.computeIfAbsent(
        key,
        missing -> {
          List<ManifestEntry<?>> entries = new ArrayList<>();
          try (ManifestReader<?> reader = ManifestFiles.open(manifest, io, specs)) {
            for (ManifestEntry<?> entry : reader.entries()) {
              entries.add(entry.copy());
            }
          } catch (IOException failure) {
            throw new UncheckedIOException(failure);
          }
          return entries;
        });
  }
}
