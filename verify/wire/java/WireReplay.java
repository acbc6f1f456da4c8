package org.apache.iceberg;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.SnapshotUtil;

/**
 * A job on any catalog: a case with summaries, writers that commit at the same moment, and an account of what readers
 * find in every snapshot. The format is told in ../jobs.py.
 */
final class WireReplay extends Replay {
  // Delete files are files, wherever the table is.
  private static final HadoopFileIO LOCAL = new HadoopFileIO(new Configuration());

  private final ArrayNode events = JsonNodeFactory.instance.arrayNode();
  private Catalog committing = null;
  private TableIdentifier named = null;

  WireReplay(JsonNode given) {
    super(given);
  }

  /** The table is made by its owner; everything else commits through another catalog, as another principal perhaps. */
  WireReplay(JsonNode given, Catalog owner, Catalog catalog, TableIdentifier name) {
    super(given, owner, name, null);
    this.committing = catalog;
    this.named = name;
  }

  @Override
  Table table() {
    return committing == null ? super.table() : committing.loadTable(named);
  }

  @Override
  ObjectNode run() {
    ObjectNode outcome = super.run();
    outcome.set("events", events);
    Table table = table();
    Map<Long, Snapshot> snapshots = new java.util.TreeMap<>();
    table.snapshots().forEach(snapshot -> snapshots.put(snapshot.snapshotId(), snapshot));
    outcome.get("snapshots").forEach(shown -> read(table, snapshots.get(shown.get("id").longValue()), (ObjectNode) shown));
    return outcome;
  }

  @Override
  boolean step(JsonNode step, String where) {
    String kind = Fields.text(step, "do");
    if (kind.equals("race")) {
      race(Fields.numbers(step, "ids"));
      return false;
    }
    int at = events.size();
    boolean lost = kind.equals("manage") ? manage(step) : super.step(step, where);
    switch (kind) {
      case "begin", "write" -> {
        ObjectNode begun = JsonNodeFactory.instance.objectNode().put("do", "begin").put("id", step.get("id").longValue());
        events.insert(at, begun.set("op", step.get("op")));
      }
      case "commit", "fail" -> {}
      default -> events.add(step);
    }
    if (kind.equals("commit") || kind.equals("write")) {
      done(step.get("id").longValue());
    }
    return lost;
  }

  private void done(long id) {
    events.addObject().put("do", "commit").put("id", id);
  }

  /**
   * Besides a summary, an operation may be staged, or carry a client's own validation: the value of a summary's property
   * in the newest ancestor that has it must be the one that it was when the writer began. So Kafka Connect looks at its
   * offsets, and Flink's dynamic sink at its checkpoints. And a staged snapshot may be picked.
   */
  @Override
  SnapshotUpdate<?> build(WriterTable table, JsonNode op) {
    ObjectNode plain = op.deepCopy();
    JsonNode summary = plain.remove("summary");
    JsonNode staged = plain.remove("stage");
    JsonNode validated = plain.remove("validate_with");
    SnapshotUpdate<?> update =
        Fields.text(plain, "kind").equals("cherry-pick")
            ? new CherryPickOperation("t", table).cherrypick(Fields.number(plain, "source"))
            : super.build(table, plain);
    if (summary != null) {
      summary.properties().forEach(word -> update.set(word.getKey(), word.getValue().textValue()));
    }
    if (staged != null && staged.booleanValue()) {
      update.stageOnly();
    }
    if (validated != null) {
      String name = validated.textValue();
      String branch = Fields.text(op, "branch", SnapshotRef.MAIN_BRANCH);
      Snapshot head = SnapshotUtil.latestSnapshot(table.current(), branch);
      String begun =
          head == null ? null : newest(SnapshotUtil.ancestorsOf(head.snapshotId(), table.current()::snapshot), name);
      update.validateWith(ancestors -> Objects.equals(begun, newest(ancestors, name)));
    }
    return update;
  }

  private static String newest(Iterable<Snapshot> ancestors, String name) {
    for (Snapshot ancestor : ancestors) {
      if (ancestor.summary() != null && ancestor.summary().containsKey(name)) {
        return ancestor.summary().get(name);
      }
    }
    return null;
  }

  /** Everything of Iceberg's that commits and writes no snapshot: branches, tags, the schema, the order, statistics. */
  private boolean manage(JsonNode step) {
    Table table = table();
    String what = Fields.text(step, "what");
    try {
      switch (what) {
        case "create-branch" ->
            table.manageSnapshots().createBranch(Fields.text(step, "name"), Fields.number(step, "at")).commit();
        case "create-tag" ->
            table.manageSnapshots().createTag(Fields.text(step, "name"), Fields.number(step, "at")).commit();
        case "remove-branch" -> table.manageSnapshots().removeBranch(Fields.text(step, "name")).commit();
        case "remove-tag" -> table.manageSnapshots().removeTag(Fields.text(step, "name")).commit();
        case "rename-branch" ->
            table.manageSnapshots().renameBranch(Fields.text(step, "name"), Fields.text(step, "to")).commit();
        case "replace-branch" ->
            table.manageSnapshots().replaceBranch(Fields.text(step, "name"), Fields.number(step, "at")).commit();
        case "fast-forward" ->
            table.manageSnapshots().fastForwardBranch(Fields.text(step, "name"), Fields.text(step, "to")).commit();
        case "rollback-to" -> table.manageSnapshots().rollbackTo(Fields.number(step, "at")).commit();
        case "set-current" -> table.manageSnapshots().setCurrentSnapshot(Fields.number(step, "at")).commit();
        case "retain" -> table.manageSnapshots().setMinSnapshotsToKeep(SnapshotRef.MAIN_BRANCH, 3).commit();
        case "add-column" -> table.updateSchema().addColumn(Fields.text(step, "name"), Types.LongType.get()).commit();
        case "sort-order" -> table.replaceSortOrder().asc("id").commit();
        case "property" -> table.updateProperties().set("job.note", Fields.text(step, "name")).commit();
        default -> throw new MalformedCase("nobody knows how to %s", what);
      }
    } catch (MalformedCase wrong) {
      throw wrong;
    } catch (RuntimeException failure) {
      failures
          .addObject()
          .put("step", what)
          .put("error", failure.getClass().getSimpleName())
          .put("message", failure.getMessage());
    }
    return false;
  }

  @Override
  ObjectNode attempt(long id, Writer writer) {
    ObjectNode verdict = super.attempt(id, writer);
    Snapshot base = writer.table().lastBase();
    return verdict.put("base", base == null ? null : (Long) base.snapshotId());
  }

  /** All at once, each in a thread of its own. What order they took is in the table. */
  private void race(List<Long> named) {
    List<Long> ids = named.stream().filter(writers::containsKey).toList();
    if (ids.isEmpty()) {
      return;
    }
    ExecutorService threads = Executors.newFixedThreadPool(ids.size());
    CountDownLatch ready = new CountDownLatch(ids.size());
    List<Future<ObjectNode>> waiting = new ArrayList<>();
    for (long id : ids) {
      Writer writer = writers.get(id);
      waiting.add(
          threads.submit(
              () -> {
                ready.countDown();
                ready.await();
                return writer.update() == null ? verdicts.get(id) : attempt(id, writer);
              }));
    }
    try {
      for (int i = 0; i < ids.size(); i++) {
        verdicts.put(ids.get(i), waiting.get(i).get());
      }
    } catch (InterruptedException | ExecutionException failure) {
      throw new IllegalStateException(failure);
    } finally {
      threads.shutdownNow();
    }
    ids.forEach(this::done);
  }

  /** What engines find in a snapshot: its data with the deletes that apply, what it says of itself, what it changed. */
  private static void read(Table table, Snapshot snapshot, ObjectNode shown) {
    ObjectNode summary = shown.putObject("summary");
    snapshot.summary().forEach(summary::put);
    shown.put("timestamp_ms", snapshot.timestampMillis());
    shown.put("first_row_id", snapshot.firstRowId());
    shown.put("added_rows", snapshot.addedRows());
    try {
      ArrayNode plan = JsonNodeFactory.instance.arrayNode();
      plan(plan, table.newScan().useSnapshot(snapshot.snapshotId()).planFiles());
      shown.set("plan", plan);
    } catch (ValidationException unreadable) {
      // Deletes for the data of two partitions: Iceberg writes them, and refuses to read them.
      shown.put("unreadable", unreadable.getMessage());
    }
    if (!snapshot.operation().equals(DataOperations.APPEND)) {
      return;
    }
    IncrementalAppendScan since = table.newIncrementalAppendScan().toSnapshot(snapshot.snapshotId());
    if (snapshot.parentId() == null) {
      since = since.fromSnapshotInclusive(snapshot.snapshotId());
    } else if (table.snapshot(snapshot.parentId()) != null) {
      since = since.fromSnapshotExclusive(snapshot.parentId());
    } else {
      return;
    }
    plan(shown.putArray("appended"), since.planFiles());
  }

  private static void plan(ArrayNode plan, CloseableIterable<FileScanTask> tasks) {
    for (FileScanTask task : tasks) {
      ArrayNode file = plan.addArray();
      file.add(task.file().location()).add(task.file().dataSequenceNumber()).add(task.file().firstRowId());
      file.add(task.file().recordCount());
      ArrayNode predicates = file.addArray();
      List<DeleteFile> positions = new ArrayList<>();
      for (DeleteFile delete : task.deletes()) {
        if (delete.content() == FileContent.EQUALITY_DELETES) {
          predicates.add(delete.location());
        } else {
          positions.add(delete);
        }
      }
      ArrayNode deleted = file.addArray();
      if (!positions.isEmpty()) {
        new BaseDeleteLoader(delete -> LOCAL.newInputFile(delete.location()))
            .loadPositionDeletes(positions, task.file().location())
            .forEach(deleted::add);
      }
    }
  }
}
