package org.apache.iceberg;

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
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
    outcome.put("next_row_id", metadata.nextRowId());
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
    ArrayNode rows = shown.putArray("rows");
    rows.add(manifest.addedRowsCount()).add(manifest.existingRowsCount()).add(manifest.deletedRowsCount());
    ArrayNode bounds = shown.putArray("bounds");
    if (manifest.partitions() != null) {
      manifest.partitions().forEach(summary -> bounds.add(bounds(summary)));
    }
    ArrayNode list = shown.putArray("entries");
    entries.forEach(entry -> list.add(entry(entry)));
    ArrayNode files = shown.putArray("files");
    entries.forEach(entry -> files.add(file(entry.file())));
  }

  /** What the list says of one partition field: null and NaN in it, the least and the greatest value. */
  private static ArrayNode bounds(ManifestFile.PartitionFieldSummary summary) {
    return JsonNodeFactory.instance
        .arrayNode()
        .add(summary.containsNull())
        .add(summary.containsNaN())
        .add(hex(summary.lowerBound()))
        .add(hex(summary.upperBound()));
  }

  /** What an entry says of its file besides: content, rows, bytes, partition, equality ids, statistics. */
  private static ArrayNode file(ContentFile<?> file) {
    ArrayNode shown = JsonNodeFactory.instance.arrayNode();
    shown.add(file.content().id()).add(file.recordCount()).add(file.fileSizeInBytes());
    ArrayNode partition = shown.addArray();
    for (int i = 0; i < file.partition().size(); i++) {
      Object value = file.partition().get(i, Object.class);
      // As text: JSON has no NaN, and no two zeros.
      partition.add(value == null ? null : String.valueOf(value));
    }
    ArrayNode ids = shown.addArray();
    if (file.equalityFieldIds() != null) {
      file.equalityFieldIds().forEach(ids::add);
    }
    return shown
        .add(counts(file.valueCounts()))
        .add(counts(file.nullValueCounts()))
        .add(counts(file.nanValueCounts()))
        .add(bounds(file.lowerBounds()))
        .add(bounds(file.upperBounds()));
  }

  /** No counts and none of any column are one to readers of a manifest. */
  private static ObjectNode counts(Map<Integer, Long> counts) {
    ObjectNode shown = JsonNodeFactory.instance.objectNode();
    if (counts != null) {
      counts.forEach((id, count) -> shown.put(String.valueOf(id), count));
    }
    return shown;
  }

  private static ObjectNode bounds(Map<Integer, ByteBuffer> bounds) {
    ObjectNode shown = JsonNodeFactory.instance.objectNode();
    if (bounds != null) {
      bounds.forEach((id, bound) -> shown.put(String.valueOf(id), hex(bound)));
    }
    return shown;
  }

  private static String hex(ByteBuffer bytes) {
    if (bytes == null) {
      return null;
    }
    byte[] copied = new byte[bytes.remaining()];
    bytes.duplicate().get(copied);
    return HexFormat.of().formatHex(copied);
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
