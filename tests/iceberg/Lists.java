import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.inmemory.InMemoryFileIO;

/**
 * Has Iceberg read manifest lists: one a line on the input, as base64; its rows on a line of the output, as the Python
 * side's `shown` writes them.
 */
public class Lists {
  private static final String SNAPSHOT =
      "{\"snapshot-id\":1,\"sequence-number\":1,\"timestamp-ms\":1,\"manifest-list\":\"list.avro\",\"schema-id\":0}";

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      InMemoryFileIO io = new InMemoryFileIO();
      io.addFile("list.avro", Base64.getDecoder().decode(line));
      Snapshot snapshot = SnapshotParser.fromJson(SNAPSHOT);
      List<String> rows = new ArrayList<>();
      for (ManifestFile row : snapshot.allManifests(io)) {
        rows.add(shown(row));
      }
      out.println(String.join(";", rows));
    }
  }

  private static String shown(ManifestFile row) {
    List<String> parts = new ArrayList<>();
    if (row.partitions() != null) {
      for (ManifestFile.PartitionFieldSummary part : row.partitions()) {
        parts.add(
            String.join(
                "/",
                String.valueOf(part.containsNull()),
                String.valueOf(part.containsNaN()),
                hex(part.lowerBound()),
                hex(part.upperBound())));
      }
    }
    return String.join(
        ",",
        row.path(),
        String.valueOf(row.length()),
        String.valueOf(row.partitionSpecId()),
        String.valueOf(row.content().id()),
        String.valueOf(row.sequenceNumber()),
        String.valueOf(row.minSequenceNumber()),
        String.valueOf(row.snapshotId()),
        String.valueOf(row.addedFilesCount()),
        String.valueOf(row.existingFilesCount()),
        String.valueOf(row.deletedFilesCount()),
        String.valueOf(row.addedRowsCount()),
        String.valueOf(row.existingRowsCount()),
        String.valueOf(row.deletedRowsCount()),
        row.partitions() == null ? "null" : "[" + String.join("|", parts) + "]",
        hex(row.keyMetadata()),
        String.valueOf(row.firstRowId()));
  }

  private static String hex(ByteBuffer data) {
    if (data == null) {
      return "null";
    }
    byte[] bytes = new byte[data.remaining()];
    data.duplicate().get(bytes);
    return HexFormat.of().formatHex(bytes);
  }
}
