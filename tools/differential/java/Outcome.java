package org.apache.iceberg;

import java.util.List;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/** Reads a table back: every snapshot in the metadata, its manifests and their entries, in the order they stand. */
final class Outcome {
  private Outcome() {}

  /** Adds the table to an outcome that holds the verdicts and failures. */
  static void addTable(ObjectNode outcome, TableMetadata metadata, FileIO io, Manifests manifests) {
    ArrayNode snapshots = outcome.putArray("snapshots");
    for (Snapshot snapshot : metadata.snapshots()) {
      ObjectNode shown = snapshots.addObject();
      shown.put("id", snapshot.snapshotId());
      shown.put("parent", snapshot.parentId());
      shown.put("sequence_number", snapshot.sequenceNumber());
      shown.put("operation", snapshot.operation());
      ArrayNode list = shown.putArray("manifests");
      for (ManifestFile manifest : snapshot.allManifests(io)) {
        addManifest(list.addObject(), manifest, manifests.entries(manifest, io, metadata.specsById()));
      }
    }
    SnapshotRef main = metadata.ref(SnapshotRef.MAIN_BRANCH);
    outcome.put("main", main == null ? null : (Long) main.snapshotId());
    ObjectNode branches = outcome.putObject("branches");
    metadata.refs().keySet().stream()
        .sorted()
        .forEach(name -> branches.put(name, metadata.ref(name).snapshotId()));
    outcome.put("format", metadata.formatVersion());
    outcome.put("last_sequence_number", metadata.lastSequenceNumber());
  }

  private static void addManifest(ObjectNode shown, ManifestFile manifest, List<ManifestEntry<?>> entries) {
    shown.put("content", manifest.content().id());
    shown.put("spec", manifest.partitionSpecId());
    shown.put("sequence_number", manifest.sequenceNumber());
    shown.put("min_sequence_number", manifest.minSequenceNumber());
    shown.put("added_snapshot_id", manifest.snapshotId());
    ArrayNode counts = shown.putArray("counts");
    counts.add(manifest.addedFilesCount());
    counts.add(manifest.existingFilesCount());
    counts.add(manifest.deletedFilesCount());
    shown.put("first_row_id", manifest.firstRowId());
    ArrayNode list = shown.putArray("entries");
    entries.forEach(entry -> list.add(entry(entry)));
  }

  private static ArrayNode entry(ManifestEntry<?> entry) {
    ContentFile<?> file = entry.file();
    return JsonNodeFactory.instance
        .arrayNode()
        .add(entry.status().id())
        .add(entry.snapshotId())
        .add(entry.dataSequenceNumber())
        .add(entry.fileSequenceNumber())
        .add(file.location())
        .add(file.firstRowId())
        .add(file instanceof DeleteFile deletes ? deletes.referencedDataFile() : null);
  }
}
