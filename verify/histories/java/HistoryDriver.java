package org.apache.iceberg;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryFileIO;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Runs cases like {@link Oracle}, whose operations may have a `summary` besides, and answers with what they leave in
 * storage: every file of the table, and where its metadata is.
 */
public final class HistoryDriver {
  private static final ObjectMapper JSON = new ObjectMapper();

  private HistoryDriver() {}

  public static void main(String[] arguments) throws IOException {
    BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    // Whatever a library prints must not come between the answers.
    System.setOut(System.err);
    for (String line = cases.readLine(); line != null; line = cases.readLine()) {
      answers.print(JSON.writeValueAsString(answer(JSON.readTree(line))) + "\n");
      answers.flush();
    }
  }

  private static JsonNode answer(JsonNode given) {
    try (History history = new History(given)) {
      return history.run();
    } catch (Exception | StackOverflowError failure) {
      failure.printStackTrace();
      return JSON.createObjectNode().put("error", String.valueOf(failure));
    }
  }

  /** A case whose files are kept. */
  private static final class History extends Replay {
    History(JsonNode given) {
      super(given);
    }

    @Override
    SnapshotUpdate<?> build(WriterTable table, JsonNode op) {
      ObjectNode plain = op.deepCopy();
      JsonNode summary = plain.remove("summary");
      SnapshotUpdate<?> update = super.build(table, plain);
      if (summary != null) {
        summary.properties().forEach(word -> update.set(word.getKey(), word.getValue().textValue()));
      }
      return update;
    }

    @Override
    ObjectNode run() {
      ObjectNode outcome = super.run();
      outcome.put("metadata", open().current().metadataFileLocation());
      ObjectNode files = outcome.putObject("files");
      try {
        Field contents = InMemoryFileIO.class.getDeclaredField("IN_MEMORY_FILES");
        contents.setAccessible(true);
        for (Map.Entry<?, ?> file : ((Map<?, ?>) contents.get(null)).entrySet()) {
          files.put((String) file.getKey(), Base64.getEncoder().encodeToString((byte[]) file.getValue()));
        }
      } catch (ReflectiveOperationException failure) {
        throw new IllegalStateException(failure);
      }
      return outcome;
    }
  }
}
