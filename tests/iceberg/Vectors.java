import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.Files;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.deletes.PositionDeleteIndex;
import org.apache.iceberg.puffin.BlobMetadata;
import org.apache.iceberg.puffin.Puffin;
import org.apache.iceberg.puffin.PuffinReader;

/**
 * Deletion vectors as Iceberg itself reads and writes them. One question a line, its words separated by spaces, one
 * answer a line:
 *
 *   write PATH FILE=1,2,3-9 …           FILE:offset:length:cardinality …
 *   read PATH FILE OFFSET LENGTH COUNT  1,2,3
 *   footer PATH                         type:fields:snapshot:sequence:offset:length:codec:properties …
 */
public class Vectors {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "write" -> System.out.println(write(words));
        case "read" -> System.out.println(read(words));
        case "footer" -> System.out.println(footer(words[1]));
        default -> throw new IllegalArgumentException(line);
      }
    }
  }

  private static String write(String[] words) throws Exception {
    BaseDVFileWriter writer = new BaseDVFileWriter(() -> Files.localOutput(words[1]), path -> null);
    for (String vector : Arrays.copyOfRange(words, 2, words.length)) {
      String[] sides = vector.split("=");
      for (String run : sides[1].split(",")) {
        String[] ends = run.split("-");
        for (long at = Long.parseLong(ends[0]); at <= Long.parseLong(ends[ends.length - 1]); at++) {
          writer.delete(sides[0], at, PartitionSpec.unpartitioned(), null);
        }
      }
    }
    writer.close();
    List<String> written = new ArrayList<>();
    for (DeleteFile file : writer.result().deleteFiles()) {
      written.add(String.join(":", file.referencedDataFile(), String.valueOf(file.contentOffset()),
          String.valueOf(file.contentSizeInBytes()), String.valueOf(file.recordCount())));
    }
    return String.join(" ", written);
  }

  private static String read(String[] words) throws Exception {
    long offset = Long.parseLong(words[3]);
    int length = Integer.parseInt(words[4]);
    byte[] data = java.nio.file.Files.readAllBytes(Paths.get(words[1]));
    DeleteFile file = FileMetadata.deleteFileBuilder(PartitionSpec.unpartitioned())
        .ofPositionDeletes().withFormat(FileFormat.PUFFIN).withPath(words[1]).withFileSizeInBytes(data.length)
        .withReferencedDataFile(words[2]).withContentOffset(offset).withContentSizeInBytes(length)
        .withRecordCount(Long.parseLong(words[5])).build();
    byte[] blob = Arrays.copyOfRange(data, (int) offset, (int) offset + length);
    List<String> positions = new ArrayList<>();
    PositionDeleteIndex.deserialize(blob, file).forEach(at -> positions.add(String.valueOf(at)));
    return String.join(",", positions);
  }

  private static String footer(String path) throws Exception {
    List<String> blobs = new ArrayList<>();
    try (PuffinReader reader = Puffin.read(Files.localInput(path)).build()) {
      for (BlobMetadata blob : reader.fileMetadata().blobs()) {
        ByteBuffer data = reader.readAll(List.of(blob)).iterator().next().second();
        blobs.add(String.join(":", blob.type(), blob.inputFields().toString().replace(" ", ""),
            String.valueOf(blob.snapshotId()), String.valueOf(blob.sequenceNumber()), String.valueOf(blob.offset()),
            String.valueOf(data.remaining()), String.valueOf(blob.compressionCodec()),
            new TreeMap<>(blob.properties()).toString().replace(" ", "")));
      }
    }
    return String.join(" ", blobs);
  }
}
