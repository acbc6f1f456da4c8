package org.apache.iceberg;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Runs jobs on Iceberg alone, in memory, or through a REST catalog: one question a line on standard input, one outcome a
 * line on standard output. A question with `catalog` and `owner` (a catalog's properties, as
 * who commits and as who owns the table) and `table` goes to that catalog.
 */
public final class WireDriver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Map<String, RESTCatalog> CATALOGS = new HashMap<>();

  private WireDriver() {}

  public static void main(String[] arguments) throws IOException {
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    // Whatever a library prints must not come between the answers.
    System.setOut(System.err);
    for (String line = questions.readLine(); line != null; line = questions.readLine()) {
      answers.print(JSON.writeValueAsString(answer(JSON.readTree(line))) + "\n");
      answers.flush();
    }
  }

  private static JsonNode answer(JsonNode question) {
    String name = question.path("name").asText("unnamed");
    try (WireReplay replay = begin(question)) {
      return replay.run();
    } catch (MalformedCase wrong) {
      return error("job %s: %s", name, wrong.getMessage());
    } catch (Exception | StackOverflowError failure) {
      failure.printStackTrace();
      return error("job %s: the driver failed: %s", name, failure);
    }
  }

  private static WireReplay begin(JsonNode question) {
    ObjectNode given = question.deepCopy();
    JsonNode properties = given.remove("catalog");
    JsonNode owner = given.remove("owner");
    JsonNode table = given.remove("table");
    if (properties == null) {
      return new WireReplay(given);
    }
    RESTCatalog owning = opened(owner);
    Namespace namespace = Namespace.of(table.get(0).asText());
    if (!owning.namespaceExists(namespace)) {
      owning.createNamespace(namespace);
    }
    return new WireReplay(given, owning, opened(properties), TableIdentifier.of(namespace, table.get(1).asText()));
  }

  private static RESTCatalog opened(JsonNode properties) {
    return CATALOGS.computeIfAbsent(
        properties.toString(),
        key -> {
          Map<String, String> settings = new HashMap<>();
          properties.properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
          RESTCatalog opened = new RESTCatalog();
          opened.initialize("tower", settings);
          return opened;
        });
  }

  private static ObjectNode error(String message, Object... arguments) {
    return JSON.createObjectNode().put("error", String.format(message, arguments));
  }
}
