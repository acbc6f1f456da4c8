package org.apache.iceberg;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Answers cases with what Iceberg itself does: one case a line on standard input, one outcome a line on standard
 * output, both JSON, in the same order. It ends when its input ends. The formats are told in ../oracle.py.
 *
 * <p>A case that cannot be run is answered with {"error": "..."}; it never ends the process.
 */
public final class Oracle {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Oracle() {}

  public static void main(String[] arguments) throws IOException {
    BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    // Whatever a library prints must not come between the answers.
    System.setOut(System.err);
    for (String line = cases.readLine(); line != null; line = cases.readLine()) {
      answers.print(JSON.writeValueAsString(answer(line)) + "\n");
      answers.flush();
    }
  }

  /** The outcome of one case, or what is wrong with it. */
  private static JsonNode answer(String line) {
    String name = "?";
    try {
      JsonNode given = JSON.readTree(line);
      name = given.path("name").asText("unnamed");
      try (Replay replay = new Replay(given)) {
        return replay.run();
      }
    } catch (MalformedCase wrong) {
      return error("case %s: %s", name, wrong.getMessage());
    } catch (Exception | StackOverflowError failure) {
      failure.printStackTrace();
      return error("case %s: the oracle failed: %s", name, failure);
    }
  }

  private static ObjectNode error(String message, Object... arguments) {
    return JSON.createObjectNode().put("error", String.format(message, arguments));
  }
}
