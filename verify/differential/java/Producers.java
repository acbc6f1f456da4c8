package org.apache.iceberg;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.function.Function;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.util.DataFileSet;
import org.apache.iceberg.util.DeleteFileSet;
import org.apache.iceberg.util.SnapshotUtil;

/**
 * Builds one writer's operation on Iceberg's own builders. The calls come in the order that the case format gives:
 * branch, start, conflict filter, flags, references, filter, what is removed, what is added, the rest.
 *
 * <p>An exception of Iceberg on the way is the writer's refusal at its beginning.
 */
final class Producers {
  private static final ExecutorService DIRECT = MoreExecutors.newDirectExecutorService();
  private static final Map<String, Set<String>> KNOWN =
      Map.of(
          "fast-append", Set.of("add"),
          "append", Set.of("add"),
          "overwrite", Set.of("start", "conflict_filter", "validate", "filter", "remove", "remove_deletes", "add"),
          "row-delta",
              Set.of(
                  "start", "conflict_filter", "validate", "references", "remove", "remove_deletes", "add",
                  "add_deletes"),
          "rewrite", Set.of("start", "remove", "remove_deletes", "add", "add_deletes", "sequence_number"),
          "replace-partitions", Set.of("start", "validate", "add"),
          "delete", Set.of("validate", "filter", "remove", "remove_paths"),
          "rewrite-manifests", Set.of("cluster_by", "rewrite_if_spec", "merge_manifests"));

  private final CaseFiles files;
  private final Manifests manifests;
  private final long id;
  private final BaseTable table;
  private final JsonNode op;
  private final Map<String, ContentFile<?>> scanned = new HashMap<>();

  Producers(CaseFiles files, Manifests manifests, WriterTable operations, JsonNode op) {
    this.files = files;
    this.manifests = manifests;
    this.id = operations.id();
    this.table = new BaseTable(operations, "t", report -> {});
    this.op = op;
  }

  /** The operation, ready to commit. */
  SnapshotUpdate<?> build() {
    String kind = Fields.text(op, "kind");
    check(kind);
    scan();
    switch (kind) {
      case "fast-append":
        return append(table.newFastAppend());
      case "append":
        return append(table.newAppend());
      case "overwrite":
        return overwrite(table.newOverwrite());
      case "row-delta":
        return rowDelta(table.newRowDelta());
      case "rewrite":
        return rewrite(table.newRewrite());
      case "replace-partitions":
        return replacePartitions(table.newReplacePartitions());
      case "delete":
        return delete(table.newDelete());
      default:
        return rewriteManifests(table.rewriteManifests());
    }
  }

  /** Fields that are empty may stand in any operation: a case may be made by a program that writes all of them. */
  private void check(String kind) {
    Set<String> known = KNOWN.get(kind);
    if (known == null) {
      throw new MalformedCase("there is no operation %s; there are %s", kind, KNOWN.keySet());
    }
    op.properties()
        .forEach(
            field -> {
              JsonNode value = field.getValue();
              boolean empty = value.isNull() || (value.isArray() && value.isEmpty());
              if (!empty && !known.contains(field.getKey()) && !Set.of("kind", "branch").contains(field.getKey())) {
                throw new MalformedCase("operation %s knows no field %s", kind, field.getKey());
              }
            });
  }

  private AppendFiles append(AppendFiles append) {
    prepare(append);
    Fields.texts(op, "add").forEach(name -> append.appendFile(files.data(name)));
    return append;
  }

  private OverwriteFiles overwrite(OverwriteFiles overwrite) {
    prepare(overwrite);
    if (Fields.has(op, "start")) {
      overwrite.validateFromSnapshot(Fields.number(op, "start"));
    }
    if (Fields.has(op, "conflict_filter")) {
      overwrite.conflictDetectionFilter(expression("conflict_filter"));
    }
    for (String flag : Fields.texts(op, "validate")) {
      switch (flag) {
        case "added-files-match-filter" -> overwrite.validateAddedFilesMatchOverwriteFilter();
        case "no-conflicting-data" -> overwrite.validateNoConflictingData();
        case "no-conflicting-deletes" -> overwrite.validateNoConflictingDeletes();
        default -> throw unknownFlag(flag);
      }
    }
    if (Fields.has(op, "filter")) {
      overwrite.overwriteByRowFilter(expression("filter"));
    }
    Fields.list(op, "remove").forEach(removed -> overwrite.deleteFile(data(removed)));
    DeleteFileSet removedDeletes = DeleteFileSet.create();
    Fields.list(op, "remove_deletes").forEach(removed -> removedDeletes.add(deletes(removed)));
    if (!removedDeletes.isEmpty()) {
      overwrite.deleteFiles(DataFileSet.create(), removedDeletes);
    }
    Fields.texts(op, "add").forEach(name -> overwrite.addFile(files.data(name)));
    return overwrite;
  }

  private RowDelta rowDelta(RowDelta delta) {
    prepare(delta);
    if (Fields.has(op, "start")) {
      delta.validateFromSnapshot(Fields.number(op, "start"));
    }
    if (Fields.has(op, "conflict_filter")) {
      delta.conflictDetectionFilter(expression("conflict_filter"));
    }
    for (String flag : Fields.texts(op, "validate")) {
      switch (flag) {
        case "no-conflicting-data" -> delta.validateNoConflictingDataFiles();
        case "no-conflicting-deletes" -> delta.validateNoConflictingDeleteFiles();
        case "deleted-files" -> delta.validateDeletedFiles();
        default -> throw unknownFlag(flag);
      }
    }
    List<String> references = Fields.texts(op, "references").stream().map(files::path).toList();
    if (!references.isEmpty()) {
      delta.validateDataFilesExist(references);
    }
    Fields.list(op, "remove").forEach(removed -> delta.removeRows(data(removed)));
    Fields.list(op, "remove_deletes").forEach(removed -> delta.removeDeletes(deletes(removed)));
    Fields.texts(op, "add").forEach(name -> delta.addRows(files.data(name)));
    Fields.texts(op, "add_deletes").forEach(name -> delta.addDeletes(files.deletes(name)));
    return delta;
  }

  private RewriteFiles rewrite(RewriteFiles rewrite) {
    prepare(rewrite);
    if (Fields.has(op, "start")) {
      rewrite.validateFromSnapshot(Fields.number(op, "start"));
    }
    Fields.list(op, "remove").forEach(removed -> rewrite.deleteFile(data(removed)));
    Fields.list(op, "remove_deletes").forEach(removed -> rewrite.deleteFile(deletes(removed)));
    Fields.texts(op, "add").forEach(name -> rewrite.addFile(files.data(name)));
    for (String name : Fields.texts(op, "add_deletes")) {
      Long sequenceNumber = files.sequenceNumber(name);
      if (sequenceNumber == null) {
        rewrite.addFile(files.deletes(name));
      } else {
        rewrite.addFile(files.deletes(name), sequenceNumber);
      }
    }
    if (Fields.has(op, "sequence_number")) {
      rewrite.dataSequenceNumber(Fields.number(op, "sequence_number"));
    }
    return rewrite;
  }

  private ReplacePartitions replacePartitions(ReplacePartitions replace) {
    prepare(replace);
    if (Fields.has(op, "start")) {
      replace.validateFromSnapshot(Fields.number(op, "start"));
    }
    for (String flag : Fields.texts(op, "validate")) {
      switch (flag) {
        case "no-conflicting-data" -> replace.validateNoConflictingData();
        case "no-conflicting-deletes" -> replace.validateNoConflictingDeletes();
        case "append-only" -> replace.validateAppendOnly();
        default -> throw unknownFlag(flag);
      }
    }
    Fields.texts(op, "add").forEach(name -> replace.addFile(files.data(name)));
    return replace;
  }

  private DeleteFiles delete(DeleteFiles delete) {
    prepare(delete);
    for (String flag : Fields.texts(op, "validate")) {
      switch (flag) {
        case "files-exist" -> delete.validateFilesExist();
        default -> throw unknownFlag(flag);
      }
    }
    if (Fields.has(op, "filter")) {
      delete.deleteFromRowFilter(expression("filter"));
    }
    Fields.list(op, "remove").forEach(removed -> delete.deleteFile(data(removed)));
    Fields.texts(op, "remove_paths").forEach(name -> delete.deleteFile(files.path(name)));
    return delete;
  }

  private RewriteManifests rewriteManifests(RewriteManifests rewrite) {
    prepare(rewrite);
    if (Fields.has(op, "cluster_by")) {
      rewrite.clusterBy(clusters(Fields.text(op, "cluster_by")));
    }
    if (Fields.has(op, "rewrite_if_spec")) {
      long spec = Fields.number(op, "rewrite_if_spec");
      rewrite.rewriteIf(manifest -> manifest.partitionSpecId() == spec);
    }
    List<Long> indexes = Fields.numbers(op, "merge_manifests");
    if (!indexes.isEmpty()) {
      List<ManifestFile> merged = new ArrayList<>();
      List<ManifestFile> present = head() == null ? List.of() : head().dataManifests(table.io());
      for (long index : indexes) {
        if (index < 0 || index >= present.size()) {
          throw new MalformedCase("merge_manifests: the head has %d data manifests, none at %d", present.size(), index);
        }
        merged.add(present.get((int) index));
      }
      merged.forEach(rewrite::deleteManifest);
      rewrite.addManifest(merge(merged));
    }
    return rewrite;
  }

  /** What every operation is given: its branch, this one thread, and that no file is ever removed. */
  private void prepare(SnapshotUpdate<?> update) {
    update.scanManifestsWith(DIRECT);
    update.writeManifestsWith(DIRECT, 1);
    update.deleteWith(path -> {});
    String branch = Fields.text(op, "branch", SnapshotRef.MAIN_BRANCH);
    if (!branch.equals(SnapshotRef.MAIN_BRANCH)) {
      update.toBranch(branch);
    }
  }

  private Expression expression(String field) {
    try {
      return ExpressionParser.fromJson(op.get(field).toString(), CaseFiles.SCHEMA);
    } catch (RuntimeException wrong) {
      throw new MalformedCase("%s %s: %s", field, op.get(field), wrong.getMessage());
    }
  }

  private static MalformedCase unknownFlag(String flag) {
    return new MalformedCase("the operation knows no validation %s", flag);
  }

  /** The head of the branch that the operation writes to, as its writer saw it when it began; or null. */
  private Snapshot head() {
    String branch = Fields.text(op, "branch", SnapshotRef.MAIN_BRANCH);
    return SnapshotUtil.latestSnapshot(table.operations().current(), branch);
  }

  private DataFile data(JsonNode removed) {
    return fromScan(removed) instanceof DataFile file ? file : files.data(name(removed));
  }

  private DeleteFile deletes(JsonNode removed) {
    return fromScan(removed) instanceof DeleteFile file ? file : files.deletes(name(removed));
  }

  /** The file as the writer's scan found it; null if it is to be built afresh, or was not there. */
  private ContentFile<?> fromScan(JsonNode removed) {
    boolean built = removed.isObject() && Fields.text(removed, "from", "scan").equals("built");
    ContentFile<?> file = built ? null : scanned.get(key(files.file(name(removed))));
    return file == null ? null : (ContentFile<?>) file.copy();
  }

  private static String name(JsonNode removed) {
    if (removed.isTextual()) {
      return removed.textValue();
    }
    Fields.allow(removed, "a removed file", Set.of("file", "from"));
    String from = Fields.text(removed, "from", "scan");
    if (!from.equals("scan") && !from.equals("built")) {
      throw new MalformedCase("a removed file comes from scan or built, not from %s", from);
    }
    return Fields.text(removed, "file");
  }

  /** Reads the live files of the head if anything is removed; the first of a path is the one that counts. */
  private void scan() {
    boolean removes = !Fields.list(op, "remove").isEmpty() || !Fields.list(op, "remove_deletes").isEmpty();
    if (!removes || head() == null) {
      return;
    }
    for (ManifestFile manifest : head().allManifests(table.io())) {
      for (ManifestEntry<?> entry : manifests.entries(manifest, table.io(), table.specs())) {
        if (entry.isLive()) {
          scanned.putIfAbsent(key(entry.file()), entry.file());
        }
      }
    }
  }

  /** Several deletion vectors may share one path; they differ by the file that they refer to. */
  private static String key(ContentFile<?> file) {
    boolean vector = file.format() == FileFormat.PUFFIN;
    return file.location() + (vector ? " " + ((DeleteFile) file).referencedDataFile() : "");
  }

  /** One new manifest with all live entries of these, as existing ones. */
  private ManifestFile merge(List<ManifestFile> merged) {
    TableMetadata metadata = table.operations().current();
    PartitionSpec spec = metadata.spec(merged.get(0).partitionSpecId());
    String path = table.operations().metadataFileLocation("w" + id + "-merged.avro");
    ManifestWriter<DataFile> writer =
        ManifestFiles.write(metadata.formatVersion(), spec, table.io().newOutputFile(path), null);
    try (writer) {
      for (ManifestFile manifest : merged) {
        if (manifest.partitionSpecId() != spec.specId()) {
          throw new MalformedCase("merge_manifests: these manifests are of several specs");
        }
        try (ManifestReader<DataFile> reader = ManifestFiles.read(manifest, table.io(), metadata.specsById())) {
          reader.liveEntries().forEach(writer::existing);
        }
      }
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
    return writer.toManifestFile();
  }

  private Function<DataFile, Object> clusters(String by) {
    Map<String, Integer> seen = new HashMap<>();
    return file -> {
      String text =
          switch (by) {
            case "partition" -> files.spec(file.specId()).partitionToPath(file.partition());
            case "all" -> "";
            case "file" -> file.location();
            default -> throw new MalformedCase("cluster_by is partition, all or file, not %s", by);
          };
      int order = seen.computeIfAbsent(file.specId() + " " + text, key -> seen.size());
      return new Cluster(text, file.specId(), order);
    };
  }

  /**
   * A cluster's key. Iceberg keeps the writers of the clusters in a hash map by (key, spec id) and lists the new
   * manifests in that map's order. With this hash code the order is that in which this writer first met the clusters,
   * over all its attempts, instead of one that nobody could foresee.
   */
  private record Cluster(String text, int spec, int order) {
    // A hash map of 16 places, the smallest one, keeps so many apart.
    private static final int COUNT_MAX = 16;
    // The hash of a pair is 31 * (31 + first) + second: 31 has an inverse modulo 2^32.
    private static final int INVERSE_OF_31 = 0xBDEF7BDF;

    Cluster {
      if (order >= COUNT_MAX) {
        throw new MalformedCase("cluster_by makes more than %d clusters", COUNT_MAX);
      }
    }

    @Override
    public int hashCode() {
      return (order - spec) * INVERSE_OF_31 - 31;
    }
  }
}
