import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Supplier;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.expressions.Binder;
import org.apache.iceberg.expressions.Evaluator;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.InclusiveMetricsEvaluator;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.expressions.ManifestEvaluator;
import org.apache.iceberg.expressions.Projections;
import org.apache.iceberg.expressions.ResidualEvaluator;
import org.apache.iceberg.expressions.StrictMetricsEvaluator;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.transforms.Transforms;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.util.ManifestFileUtil;
import org.apache.iceberg.util.Pair;
import org.apache.iceberg.util.UUIDUtil;

/**
 * Asks Iceberg what a filter means: one question a line on the input, one answer a line on the output, both JSON.
 * What questions look like stands in filter_questions.py. An exception is answered as [class, message].
 */
public class Filters {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private record Row(Object[] values) implements StructLike {
    @Override
    public int size() {
      return values.length;
    }

    @Override
    public <T> T get(int position, Class<T> type) {
      return type.cast(values[position]);
    }

    @Override
    public <T> void set(int position, T value) {
      values[position] = value;
    }
  }

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(MAPPER.writeValueAsString(answer(MAPPER.readTree(line))));
    }
    out.flush();
  }

  private static ObjectNode answer(JsonNode question) {
    ObjectNode answer = MAPPER.createObjectNode();
    for (JsonNode each : question.get("applied")) {
      answer.withArray("applied").add(attempt(() -> applied(each)));
    }
    for (JsonNode each : question.get("literals")) {
      answer.withArray("literals").add(attempt(() -> converted(each)));
    }
    Schema schema = SchemaParser.fromJson(question.get("schema"));
    PartitionSpec spec = PartitionSpecParser.fromJson(schema, question.get("spec"));
    Expression filter = ExpressionParser.fromJson(question.get("filter"));
    answer.set("text", attempt(filter::toString));
    answer.set("json", attempt(() -> ExpressionParser.toJson(filter)));
    answer.set("without not", attempt(() -> Expressions.rewriteNot(filter).toString()));
    answer.set("bound", attempt(() -> Binder.bind(schema.asStruct(), filter, true) != null));
    List<Row> partitions = new ArrayList<>();
    for (JsonNode partition : question.get("partitions")) {
      partitions.add(row(spec, partition));
    }
    for (Row row : partitions) {
      askOfPartition(answer, spec, filter, row);
    }
    for (JsonNode file : question.get("files")) {
      Row row = partitions.get(file.get("partition").asInt());
      askOfFile(answer, schema, spec, filter, row, dataFile(file));
    }
    for (JsonNode summaries : question.get("manifests")) {
      ManifestFile manifest = manifest(summaries);
      answer
          .withArray("manifest might")
          .add(attempt(() -> ManifestEvaluator.forRowFilter(filter, spec, true).eval(manifest)));
      for (Row row : partitions) {
        List<Pair<Integer, StructLike>> one = List.of(Pair.of(0, row));
        answer
            .withArray("can contain")
            .add(attempt(() -> ManifestFileUtil.canContainAny(manifest, one, Map.of(0, spec))));
      }
    }
    return answer;
  }

  private static void askOfPartition(ObjectNode answer, PartitionSpec spec, Expression filter, Row row) {
    Types.StructType type = spec.partitionType();
    answer
        .withArray("partition might")
        .add(attempt(() -> new Evaluator(type, Projections.inclusive(spec).project(filter)).eval(row)));
    answer
        .withArray("partition must")
        .add(attempt(() -> new Evaluator(type, Projections.strict(spec).project(filter)).eval(row)));
    answer
        .withArray("residual")
        .add(attempt(() -> ResidualEvaluator.of(spec, filter, true).residualFor(row).toString()));
  }

  private static void askOfFile(
      ObjectNode answer, Schema schema, PartitionSpec spec, Expression filter, Row row, DataFile file) {
    Supplier<Expression> residual = () -> ResidualEvaluator.of(spec, filter, true).residualFor(row);
    answer.withArray("rows might").add(attempt(() -> new InclusiveMetricsEvaluator(schema, filter).eval(file)));
    answer.withArray("rows must").add(attempt(() -> new StrictMetricsEvaluator(schema, filter).eval(file)));
    answer
        .withArray("residual might")
        .add(attempt(() -> new InclusiveMetricsEvaluator(schema, residual.get()).eval(file)));
    answer
        .withArray("residual must")
        .add(attempt(() -> new StrictMetricsEvaluator(schema, residual.get()).eval(file)));
  }

  @SuppressWarnings("unchecked")
  private static String applied(JsonNode question) {
    Type type = Types.fromPrimitiveString(question.get(1).asText());
    Transform<Object, Object> transform =
        (Transform<Object, Object>) Transforms.fromString(question.get(0).asText());
    return shown(transform.bind(type).apply(value(type, question.get(2))));
  }

  private static String converted(JsonNode question) {
    JsonNode node = question.get(1);
    Object raw =
        node.isIntegralNumber()
            ? (Object) node.asLong()
            : node.isTextual() ? node.asText() : node.isBoolean() ? (Object) node.asBoolean() : node.asDouble();
    Literal<?> literal = Expressions.lit(raw).to(Types.fromPrimitiveString(question.get(0).asText()));
    if (literal == null) {
      return "null";
    }
    String name = literal.toString();
    return name.equals("aboveMax") || name.equals("belowMin") ? name : shown(literal.value());
  }

  private static JsonNode attempt(Supplier<Object> question) {
    try {
      return MAPPER.valueToTree(question.get());
    } catch (RuntimeException e) {
      ArrayNode failure = MAPPER.createArrayNode();
      return failure.add(e.getClass().getSimpleName()).add(String.valueOf(e.getMessage()));
    }
  }

  private static Row row(PartitionSpec spec, JsonNode partition) {
    List<Types.NestedField> fields = spec.partitionType().fields();
    Object[] values = new Object[fields.size()];
    for (int at = 0; at < values.length; at++) {
      values[at] = value(fields.get(at).type(), partition.get(at));
    }
    return new Row(values);
  }

  private static Object value(Type type, JsonNode node) {
    if (node.isNull()) {
      return null;
    }
    switch (type.typeId()) {
      case BOOLEAN:
        return node.asBoolean();
      case INTEGER:
      case DATE:
        return node.asInt();
      case LONG:
      case TIME:
      case TIMESTAMP:
      case TIMESTAMP_NANO:
        return node.asLong();
      case FLOAT:
        return Float.valueOf(node.asText());
      case DOUBLE:
        return Double.valueOf(node.asText());
      case STRING:
        return node.asText();
      case UUID:
        return UUIDUtil.convert(bytes(node).array());
      case FIXED:
      case BINARY:
        return bytes(node);
      case DECIMAL:
        return new BigDecimal(node.asText());
      default:
        throw new IllegalArgumentException("no values of type " + type);
    }
  }

  private static ByteBuffer bytes(JsonNode hex) {
    return hex.isNull() ? null : ByteBuffer.wrap(HexFormat.of().parseHex(hex.asText()));
  }

  private static String shown(Object value) {
    if (value instanceof UUID) {
      return HexFormat.of().formatHex(UUIDUtil.convert((UUID) value));
    }
    if (value instanceof ByteBuffer) {
      return HexFormat.of().formatHex(ByteBuffers.toByteArray((ByteBuffer) value));
    }
    return value instanceof Float ? String.valueOf(((Float) value).doubleValue()) : String.valueOf(value);
  }

  private static DataFile dataFile(JsonNode file) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("recordCount", file.get("records").asLong());
    answers.put("valueCounts", counts(file.get("value_counts")));
    answers.put("nullValueCounts", counts(file.get("null_value_counts")));
    answers.put("nanValueCounts", counts(file.get("nan_value_counts")));
    answers.put("lowerBounds", bounds(file.get("lower_bounds")));
    answers.put("upperBounds", bounds(file.get("upper_bounds")));
    return standIn(DataFile.class, answers);
  }

  private static ManifestFile manifest(JsonNode summaries) {
    List<Object> partitions = summaries.isNull() ? null : new ArrayList<>();
    for (JsonNode summary : summaries) {
      Map<String, Object> answers = new HashMap<>();
      answers.put("containsNull", summary.get(0).asBoolean());
      answers.put("containsNaN", summary.get(1).isNull() ? null : (Object) summary.get(1).asBoolean());
      answers.put("lowerBound", bytes(summary.get(2)));
      answers.put("upperBound", bytes(summary.get(3)));
      partitions.add(standIn(ManifestFile.PartitionFieldSummary.class, answers));
    }
    Map<String, Object> answers = new HashMap<>();
    answers.put("partitions", partitions);
    answers.put("partitionSpecId", 0);
    return standIn(ManifestFile.class, answers);
  }

  private static Map<Integer, Long> counts(JsonNode map) {
    Map<Integer, Long> counts = map.isNull() ? null : new HashMap<>();
    map.fields().forEachRemaining(e -> counts.put(Integer.valueOf(e.getKey()), e.getValue().asLong()));
    return counts;
  }

  private static Map<Integer, ByteBuffer> bounds(JsonNode map) {
    Map<Integer, ByteBuffer> bounds = map.isNull() ? null : new HashMap<>();
    map.fields().forEachRemaining(e -> bounds.put(Integer.valueOf(e.getKey()), bytes(e.getValue())));
    return bounds;
  }

  /** An object whose methods without arguments give these answers. Real files can't have a negative record count. */
  private static <T> T standIn(Class<T> type, Map<String, Object> answers) {
    Object made =
        Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (proxy, method, args) -> {
              if (answers.containsKey(method.getName())) {
                return answers.get(method.getName());
              }
              throw new UnsupportedOperationException(method.getName());
            });
    return type.cast(made);
  }
}
