package org.apache.iceberg;

import java.io.IOException;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/** One case: one table of a catalog, whose life the steps are. */
class Replay implements AutoCloseable {
  private static final TableIdentifier NAME = TableIdentifier.of("n", "t");
  private static final Set<String> CASE = Set.of("name", "format", "specs", "properties", "files", "steps");
  private static final Map<String, Set<String>> STEPS =
      Map.of(
          "begin", Set.of("do", "id", "op"),
          "commit", Set.of("do", "id", "between"),
          "write", Set.of("do", "id", "op", "between"),
          "fail", Set.of("do"),
          "spec", Set.of("do", "spec"),
          "upgrade", Set.of("do", "format"),
          "set", Set.of("do", "properties"),
          "rollback", Set.of("do", "to"),
          "expire", Set.of("do", "ids"));
  // Lost swaps are retried at once.
  private static final Map<String, String> PROPERTIES =
      Map.of(TableProperties.COMMIT_MIN_RETRY_WAIT_MS, "0", TableProperties.COMMIT_MAX_RETRY_WAIT_MS, "0");

  /** A writer that has begun; without an update it was refused. */
  record Writer(WriterTable table, SnapshotUpdate<?> update) {}

  private final Catalog catalog;
  private final TableIdentifier name;
  private final JsonNode given;
  private final CaseFiles files;
  final Manifests manifests = new Manifests();
  final Map<Long, Writer> writers = new HashMap<>();
  final Map<Long, ObjectNode> verdicts = new TreeMap<>();
  final ArrayNode failures = JsonNodeFactory.instance.arrayNode();

  /** In memory, alone with Iceberg. */
  Replay(JsonNode given) {
    this(given, inMemory(), NAME, CaseFiles.LOCATION);
  }

  /**
   * In a namespace of a catalog that is there already.
   *
   * @param location of the table; null leaves it to the catalog
   */
  Replay(JsonNode given, Catalog catalog, TableIdentifier name, String location) {
    Fields.allow(given, "the case", CASE);
    this.given = given;
    this.catalog = catalog;
    this.name = name;
    int format = (int) Fields.number(given, "format", 2);
    this.files = new CaseFiles(given, format);
    Map<String, String> properties = new HashMap<>(PROPERTIES);
    properties.putAll(properties(given));
    properties.put(TableProperties.FORMAT_VERSION, String.valueOf(format));
    Catalog.TableBuilder builder =
        catalog
            .buildTable(name, CaseFiles.SCHEMA)
            .withPartitionSpec(files.spec(0))
            .withProperties(properties);
    if (location != null) {
      builder.withLocation(location);
    }
    builder.create();
  }

  static InMemoryCatalog inMemory() {
    InMemoryCatalog catalog = new InMemoryCatalog();
    catalog.initialize("oracle", Map.of());
    catalog.createNamespace(Namespace.of("n"));
    return catalog;
  }

  ObjectNode run() {
    List<JsonNode> steps = Fields.list(given, "steps");
    for (int i = 0; i < steps.size(); i++) {
      if (step(steps.get(i), "step " + i)) {
        throw new MalformedCase("step %d: fail stands only between an attempt and its swap", i);
      }
    }
    ObjectNode outcome = JsonNodeFactory.instance.objectNode();
    ObjectNode shown = outcome.putObject("verdicts");
    verdicts.forEach((id, verdict) -> shown.set(String.valueOf(id), verdict));
    outcome.set("failures", failures);
    TableOperations table = open();
    Outcome.addTable(outcome, table.current(), table.io(), manifests);
    return outcome;
  }

  @Override
  public void close() throws IOException, ReflectiveOperationException {
    if (catalog instanceof InMemoryCatalog memory) {
      memory.close();
    }
    // All files in memory stand in one map of the class; the next case begins without any.
    Field contents = InMemoryFileIO.class.getDeclaredField("IN_MEMORY_FILES");
    contents.setAccessible(true);
    ((Map<?, ?>) contents.get(null)).clear();
  }

  /** Takes one step; true if it asks that the swap around it be lost. */
  boolean step(JsonNode step, String where) {
    try {
      String kind = Fields.text(step, "do");
      if (!STEPS.containsKey(kind)) {
        throw new MalformedCase("there is no step %s; there are %s", kind, STEPS.keySet());
      }
      Fields.allow(step, kind, STEPS.get(kind));
      switch (kind) {
        case "begin" -> begin(step);
        case "commit" -> commit(step, where);
        case "write" -> {
          begin(step);
          commit(step, where);
        }
        case "fail" -> {
          return true;
        }
        default -> change(kind, step);
      }
      return false;
    } catch (MalformedCase wrong) {
      throw wrong.getMessage().startsWith("step ") ? wrong : new MalformedCase("%s: %s", where, wrong.getMessage());
    }
  }

  private void begin(JsonNode step) {
    long id = Fields.number(step, "id");
    if (id <= 0 || writers.containsKey(id)) {
      throw new MalformedCase("writer %d: ids are positive and begin once", id);
    }
    WriterTable table = new WriterTable(open(), id);
    SnapshotUpdate<?> update = null;
    try {
      update = build(table, Fields.required(step, "op"));
    } catch (MalformedCase wrong) {
      throw wrong;
    } catch (RuntimeException refusal) {
      verdicts.put(id, refused(refusal, "begin", 0));
    }
    writers.put(id, new Writer(table, update));
  }

  SnapshotUpdate<?> build(WriterTable table, JsonNode op) {
    return new Producers(files, manifests, table, op).build();
  }

  private void commit(JsonNode step, String where) {
    long id = Fields.number(step, "id");
    Writer writer = writers.get(id);
    if (writer == null || (writer.update() != null && verdicts.containsKey(id))) {
      throw new MalformedCase("writer %d must begin, and then commit once", id);
    }
    if (writer.update() == null) {
      return;
    }
    List<JsonNode> between = Fields.list(step, "between");
    // Marks the writer as committing, so that it cannot be committed again from inside.
    verdicts.put(id, JsonNodeFactory.instance.objectNode());
    writer.table().beforeSwap(attempt -> attempt <= between.size() && run(between.get(attempt - 1), where, attempt));
    verdicts.put(id, attempt(id, writer));
  }

  /** Commits, retries included; says what came of it. */
  ObjectNode attempt(long id, Writer writer) {
    ObjectNode verdict;
    try {
      writer.update().commit();
      verdict = JsonNodeFactory.instance.objectNode().put("verdict", "committed");
      Snapshot own = writer.table().current().snapshot(id);
      // Who picks a snapshot whose parent is the head moves the branch there, and makes none.
      verdict.put("operation", own == null ? "fast-forward" : own.operation());
      verdict.put("attempts", writer.table().swaps());
    } catch (MalformedCase wrong) {
      throw wrong;
    } catch (CommitFailedException lost) {
      verdict = JsonNodeFactory.instance.objectNode().put("verdict", "exhausted");
      verdict.put("attempts", writer.table().swaps());
    } catch (RuntimeException refusal) {
      verdict = refused(refusal, "commit", writer.table().attempts());
    }
    return verdict;
  }

  /** The steps between an attempt and its swap; true if one of them asks that the swap be lost. */
  private boolean run(JsonNode steps, String where, int attempt) {
    boolean lost = false;
    for (int i = 0; i < steps.size(); i++) {
      lost |= step(steps.get(i), String.format("%s, attempt %d, step %d", where, attempt, i));
    }
    return lost;
  }

  private static ObjectNode refused(RuntimeException refusal, String at, int attempts) {
    return JsonNodeFactory.instance
        .objectNode()
        .put("verdict", "refused")
        .put("error", refusal.getClass().getSimpleName())
        .put("message", refusal.getMessage())
        .put("at", at)
        .put("attempts", attempts);
  }

  /** A change of the metadata alone. What Iceberg says against it is kept as a failure of the step. */
  private void change(String kind, JsonNode step) {
    TableOperations table = open();
    TableMetadata base = table.current();
    try {
      switch (kind) {
        case "spec" -> setSpec(table, base, Fields.number(step, "spec"));
        case "upgrade" -> table.commit(base, base.upgradeToFormatVersion((int) Fields.number(step, "format")));
        case "set" ->
            table.commit(base, TableMetadata.buildFrom(base).setProperties(properties(step)).build());
        case "rollback" ->
            table.commit(
                base,
                TableMetadata.buildFrom(base)
                    .setBranchSnapshot(Fields.number(step, "to"), SnapshotRef.MAIN_BRANCH)
                    .build());
        default -> {
          ExpireSnapshots expire = new RemoveSnapshots(table).cleanExpiredFiles(false);
          Fields.numbers(step, "ids").forEach(expire::expireSnapshotId);
          expire.commit();
        }
      }
    } catch (MalformedCase wrong) {
      throw wrong;
    } catch (RuntimeException failure) {
      failures
          .addObject()
          .put("step", kind)
          .put("error", failure.getClass().getSimpleName())
          .put("message", failure.getMessage());
    }
  }

  private void setSpec(TableOperations table, TableMetadata base, long index) {
    TableMetadata changed = base.updatePartitionSpec(files.spec(index));
    if (changed.defaultSpecId() != index) {
      throw new MalformedCase(
          "spec %d would get the id %d: specs are added in the order of their index, and differ",
          index, changed.defaultSpecId());
    }
    table.commit(base, changed);
  }

  private static Map<String, String> properties(JsonNode object) {
    Map<String, String> properties = new HashMap<>();
    object
        .path("properties")
        .properties()
        .forEach(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
    return properties;
  }

  /** The table as anybody sees it now, through operations that nobody else uses. */
  TableOperations open() {
    return ((HasTableOperations) table()).operations();
  }

  Table table() {
    return catalog.loadTable(name);
  }
}
