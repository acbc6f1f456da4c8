package icetower.demo;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import org.apache.iceberg.metrics.CommitReport;
import org.apache.iceberg.metrics.MetricsReport;
import org.apache.iceberg.metrics.MetricsReporter;

/** Appends to a file, one line for each commit that landed, how often Iceberg's client had to attempt it. */
public class CommitAttempts implements MetricsReporter {
  private Path file;

  public void initialize(Map<String, String> properties) {
    this.file = Paths.get((String) properties.get("commit-attempts.file"), new String[0]);
  }

  public void report(MetricsReport report) {
    if (!(report instanceof CommitReport)) {
      return;
    }
    String line = ((CommitReport) report).commitMetrics().attempts().value() + "\n";
    StandardOpenOption[] options = {StandardOpenOption.CREATE, StandardOpenOption.APPEND};
    try {
      Files.write(this.file, line.getBytes(), options);
    } catch (IOException failed) {
      throw new RuntimeException(failed);
    }
  }
}
