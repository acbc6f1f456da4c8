package org.apache.iceberg;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/** The schema, the partition specs and the files that a case names, as Iceberg's objects. */
final class CaseFiles {
  static final String LOCATION = "mem://t";

  static final Schema SCHEMA =
      new Schema(
          Types.NestedField.required(1, "id", Types.LongType.get()),
          Types.NestedField.optional(2, "category", Types.StringType.get()),
          Types.NestedField.optional(3, "amount", Types.IntegerType.get()),
          Types.NestedField.optional(4, "day", Types.DateType.get()),
          Types.NestedField.optional(5, "price", Types.DoubleType.get()));

  private static final Pattern TRANSFORM = Pattern.compile("(\\w+)(?:\\[(\\d+)])?");
  private static final Set<String> METRICS = Set.of("values", "nulls", "nans", "lower", "upper");
  private static final Set<String> FILE =
      Set.of(
          "content", "spec", "partition", "records", "size", "metrics", "path", "references", "path_bounds",
          "equality_ids", "sequence_number",
          // Of vectors that are really there, as in the jobs of verify/wire.
          "offset", "length");

  private final List<PartitionSpec> specs;
  private final JsonNode files;

  CaseFiles(JsonNode given, int formatVersion) {
    this.specs = specs(Fields.list(given, "specs"), formatVersion);
    this.files = given.path("files");
    // A file that nothing names yet is looked at too, so that a malformed case is always told.
    files.fieldNames().forEachRemaining(this::file);
  }

  PartitionSpec spec(long index) {
    if (index < 0 || index >= specs.size()) {
      throw new MalformedCase("there is no spec %d: the case has %d", index, specs.size());
    }
    return specs.get((int) index);
  }

  String path(String name) {
    JsonNode file = describe(name);
    String suffix = Fields.text(file, "content", "data").equals("dv") ? "puffin" : "parquet";
    return Fields.text(file, "path", LOCATION + "/data/" + name + "." + suffix);
  }

  /** A fresh file of the case, of whatever content. */
  ContentFile<?> file(String name) {
    JsonNode file = describe(name);
    Fields.allow(file, "file " + name, FILE);
    try {
      return Fields.text(file, "content", "data").equals("data") ? buildData(name, file) : buildDeletes(name, file);
    } catch (IllegalArgumentException refused) {
      throw new MalformedCase("file %s: %s", name, refused.getMessage());
    }
  }

  DataFile data(String name) {
    if (file(name) instanceof DataFile file) {
      return file;
    }
    throw new MalformedCase("file %s is a delete file; a data file is asked for", name);
  }

  DeleteFile deletes(String name) {
    if (file(name) instanceof DeleteFile file) {
      return file;
    }
    throw new MalformedCase("file %s is a data file; a delete file is asked for", name);
  }

  /** The data sequence number that the case gives to a file, or null. */
  Long sequenceNumber(String name) {
    JsonNode file = describe(name);
    return Fields.has(file, "sequence_number") ? Fields.number(file, "sequence_number") : null;
  }

  private JsonNode describe(String name) {
    JsonNode file = files.get(name);
    if (file == null) {
      throw new MalformedCase("there is no file %s in the case", name);
    }
    return file;
  }

  private DataFile buildData(String name, JsonNode file) {
    PartitionSpec spec = spec(Fields.number(file, "spec", 0));
    return DataFiles.builder(spec)
        .withPath(path(name))
        .withFormat(FileFormat.PARQUET)
        .withPartition(partition(name, file, spec))
        .withFileSizeInBytes(Fields.number(file, "size", 100))
        .withMetrics(metrics(file))
        .build();
  }

  private DeleteFile buildDeletes(String name, JsonNode file) {
    PartitionSpec spec = spec(Fields.number(file, "spec", 0));
    FileMetadata.Builder builder =
        FileMetadata.deleteFileBuilder(spec)
            .withPath(path(name))
            .withFormat(FileFormat.PARQUET)
            .withPartition(partition(name, file, spec))
            .withFileSizeInBytes(Fields.number(file, "size", 100))
            .withMetrics(metrics(file));
    if (Fields.has(file, "references")) {
      builder.withReferencedDataFile(path(Fields.text(file, "references")));
    }
    String content = Fields.text(file, "content");
    switch (content) {
      case "position-deletes":
        return builder.ofPositionDeletes().build();
      case "equality-deletes":
        int[] ids = Fields.numbers(file, "equality_ids").stream().mapToInt(Math::toIntExact).toArray();
        return builder.ofEqualityDeletes(ids).build();
      case "dv":
        return builder
            .ofPositionDeletes()
            .withFormat(FileFormat.PUFFIN)
            .withContentOffset(Fields.number(file, "offset", 4))
            .withContentSizeInBytes(Fields.number(file, "length", 40))
            .build();
      default:
        throw new MalformedCase("file %s: there is no content %s", name, content);
    }
  }

  private static PartitionData partition(String name, JsonNode file, PartitionSpec spec) {
    Types.StructType type = spec.partitionType();
    List<JsonNode> values = Fields.list(file, "partition");
    if (values.size() != type.fields().size()) {
      throw new MalformedCase(
          "file %s: spec %d has %d partition fields, and the file gives %d values",
          name, spec.specId(), type.fields().size(), values.size());
    }
    PartitionData partition = new PartitionData(type);
    for (int i = 0; i < values.size(); i++) {
      partition.set(i, raw(type.fields().get(i).type(), values.get(i)));
    }
    return partition;
  }

  private Metrics metrics(JsonNode file) {
    JsonNode given = file.path("metrics");
    if (Fields.has(file, "metrics")) {
      Fields.allow(given, "metrics", METRICS);
    }
    Map<Integer, ByteBuffer> lower = column(given, "lower", CaseFiles::bound);
    Map<Integer, ByteBuffer> upper = column(given, "upper", CaseFiles::bound);
    List<String> paths = Fields.texts(file, "path_bounds");
    if (!paths.isEmpty()) {
      if (paths.size() != 2) {
        throw new MalformedCase("path_bounds must name two files, not %s", paths);
      }
      int id = MetadataColumns.DELETE_FILE_PATH.fieldId();
      lower = lower == null ? new TreeMap<>() : lower;
      upper = upper == null ? new TreeMap<>() : upper;
      lower.put(id, Conversions.toByteBuffer(Types.StringType.get(), path(paths.get(0))));
      upper.put(id, Conversions.toByteBuffer(Types.StringType.get(), path(paths.get(1))));
    }
    return new Metrics(
        Fields.number(file, "records", 10),
        null,
        column(given, "values", (id, value) -> value.longValue()),
        column(given, "nulls", (id, value) -> value.longValue()),
        column(given, "nans", (id, value) -> value.longValue()),
        lower,
        upper);
  }

  /** A map by column id, in the order of the ids, so that messages print it the same way every time; or null. */
  private static <T> Map<Integer, T> column(JsonNode metrics, String field, BiFunction<Integer, JsonNode, T> read) {
    if (!Fields.has(metrics, field)) {
      return null;
    }
    Map<Integer, T> values = new TreeMap<>();
    metrics
        .get(field)
        .properties()
        .forEach(
            entry -> {
              int id = Integer.parseInt(entry.getKey());
              values.put(id, read.apply(id, entry.getValue()));
            });
    return values;
  }

  private static ByteBuffer bound(int id, JsonNode value) {
    Type type = SCHEMA.findType(id);
    if (type == null) {
      throw new MalformedCase("metrics: there is no column %d", id);
    }
    return Conversions.toByteBuffer(type, raw(type, value));
  }

  /** A value as Iceberg holds it inside: dates as days since 1970. */
  private static Object raw(Type type, JsonNode value) {
    if (value.isNull()) {
      return null;
    }
    switch (type.typeId()) {
      case INTEGER:
      case DATE:
        if (value.isInt()) {
          return value.intValue();
        }
        break;
      case LONG:
        if (value.isIntegralNumber() && value.canConvertToLong()) {
          return value.longValue();
        }
        break;
      case DOUBLE:
        if (value.isNumber()) {
          return value.doubleValue();
        } else if (value.isTextual() && value.textValue().equals("NaN")) {
          return Double.NaN;
        }
        break;
      case STRING:
        if (value.isTextual()) {
          return value.textValue();
        }
        break;
      default:
    }
    throw new MalformedCase("%s is no raw value of type %s", value, type);
  }

  private static List<PartitionSpec> specs(List<JsonNode> given, int formatVersion) {
    List<PartitionSpec> specs = new ArrayList<>();
    Map<String, Integer> known = new HashMap<>();
    for (JsonNode fields : given) {
      PartitionSpec named = named(specs.size(), fields);
      specs.add(formatVersion == 1 ? named : withStableIds(named, known));
    }
    return specs;
  }

  private static PartitionSpec named(int specId, JsonNode fields) {
    PartitionSpec.Builder builder = PartitionSpec.builderFor(SCHEMA).withSpecId(specId);
    for (JsonNode field : fields) {
      Fields.allow(field, "a partition field", Set.of("column", "transform"));
      String column = Fields.text(field, "column");
      Matcher transform = TRANSFORM.matcher(Fields.text(field, "transform"));
      String kind = transform.matches() ? transform.group(1) : "";
      boolean sized = kind.equals("bucket") || kind.equals("truncate");
      if (kind.isEmpty() || sized != (transform.group(2) != null)) {
        throw new MalformedCase("there is no transform %s", Fields.text(field, "transform"));
      }
      switch (kind) {
        case "identity" -> builder.identity(column);
        case "bucket" -> builder.bucket(column, Integer.parseInt(transform.group(2)));
        case "truncate" -> builder.truncate(column, Integer.parseInt(transform.group(2)));
        case "year" -> builder.year(column);
        case "month" -> builder.month(column);
        case "day" -> builder.day(column);
        case "void" -> builder.alwaysNull(column);
        default -> throw new MalformedCase("there is no transform %s", kind);
      }
    }
    return builder.build();
  }

  /**
   * From format 2 on the same transform of the same column keeps its field id over specs, and a new one takes the next
   * id, as Iceberg's own spec update assigns them; format 1 numbers the fields of each spec from 1000.
   */
  private static PartitionSpec withStableIds(PartitionSpec spec, Map<String, Integer> known) {
    PartitionSpec.Builder builder = PartitionSpec.builderFor(SCHEMA).withSpecId(spec.specId());
    for (PartitionField field : spec.fields()) {
      int id = known.computeIfAbsent(field.sourceId() + " " + field.transform(), key -> 1000 + known.size());
      builder.add(field.sourceId(), id, field.name(), field.transform());
    }
    return builder.build();
  }
}
