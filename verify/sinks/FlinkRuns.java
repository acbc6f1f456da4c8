package org.apache.iceberg.flink.sink;

import java.util.List;
import java.util.Map;
import org.apache.flink.api.connector.sink2.Committer;
import org.apache.flink.core.io.SimpleVersionedSerialization;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.flink.TableLoader;
import org.apache.iceberg.io.WriteResult;

/**
 * Flink's own committer, several runs of one job, against a tower. Each line of the program's output is what became of
 * one commit: {@code RUN CHECKPOINT done}, or the message of its exception.
 */
public class FlinkRuns {
  private static final String JOB = "00000000000000000000000000000000";
  private static final String OPERATOR = "e5d14f1a2b7c4a0c9f0d6c7b8a9e0f1d";

  private final String uri;
  private final String token;
  private final TableIdentifier name;
  private int manifests = 0;

  private FlinkRuns(String uri, String token, String name) {
    this.uri = uri;
    this.token = token;
    this.name = TableIdentifier.parse(name);
  }

  public static void main(String[] arguments) throws Exception {
    new FlinkRuns(arguments[0], arguments[1], arguments[2]).play();
  }

  private void play() throws Exception {
    // All of them load the table now, and look at what they have loaded.
    Run first = new Run("first");
    Run second = new Run("second");
    Run third = new Run("third");
    Run fourth = new Run("fourth");
    first.commit(1, "a", 3);
    second.commit(1, "a", 3); // its checkpoint holds the same files
    first.commit(2, "b", 4);
    first.commit(3, "c", 5);
    third.commit(2, "b-again", 40); // set back, and two rows more by now
    fourth.commit(3, "c-again", 50);
    new Run("fifth").commit(3, "c", 5); // it has loaded the table since: it passes over it by itself
    new Run("sixth").commit(4, "d", 6);
    System.out.println("records " + load().currentSnapshot().summary().get("total-records"));
  }

  private Table load() {
    Catalog catalog = CatalogUtil.buildIcebergCatalog("tower", Map.of("type", "rest", "uri", uri, "token", token), null);
    return catalog.loadTable(name);
  }

  private class Run {
    private final String called;
    private final Table table = load();
    private final IcebergCommitter committer;

    Run(String called) {
      this.called = called;
      this.committer =
          new IcebergCommitter(new Loaded(table), "main", Map.of(), false, 1, called, null, false);
    }

    void commit(long checkpoint, String file, long rows) {
      try {
        committer.commit(List.of(new Request(committable(checkpoint, file, rows))));
        System.out.println(called + " " + checkpoint + " done");
      } catch (Exception e) {
        System.out.println(called + " " + checkpoint + " " + e.getClass().getSimpleName() + " " + e.getMessage());
      }
    }

    private IcebergCommittable committable(long checkpoint, String file, long rows) throws Exception {
      DataFile data =
          DataFiles.builder(table.spec())
              .withPath(table.location() + "/data/" + file + ".parquet")
              .withFileSizeInBytes(100 + rows)
              .withRecordCount(rows)
              .build();
      WriteResult result = WriteResult.builder().addDataFiles(data).build();
      String place = table.location() + "/metadata/flink-" + manifests++ + ".avro";
      DeltaManifests written =
          FlinkManifestUtil.writeCompletedFiles(result, () -> table.io().newOutputFile(place), table.spec(), 2);
      byte[] bytes =
          SimpleVersionedSerialization.writeVersionAndSerialize(DeltaManifestsSerializer.INSTANCE, written);
      return new IcebergCommittable(bytes, JOB, OPERATOR, checkpoint);
    }
  }

  private static class Loaded implements TableLoader {
    private final Table table;

    Loaded(Table table) {
      this.table = table;
    }

    @Override
    public void open() {}

    @Override
    public boolean isOpen() {
      return true;
    }

    @Override
    public Table loadTable() {
      return table;
    }

    @Override
    public TableLoader clone() {
      return this;
    }

    @Override
    public void close() {}
  }

  private static class Request implements Committer.CommitRequest<IcebergCommittable> {
    private final IcebergCommittable committable;

    Request(IcebergCommittable committable) {
      this.committable = committable;
    }

    @Override
    public IcebergCommittable getCommittable() {
      return committable;
    }

    @Override
    public int getNumberOfRetries() {
      return 0;
    }

    @Override
    public void signalFailedWithKnownReason(Throwable cause) {
      throw new RuntimeException(cause);
    }

    @Override
    public void signalFailedWithUnknownReason(Throwable cause) {
      throw new RuntimeException(cause);
    }

    @Override
    public void retryLater() {}

    @Override
    public void updateAndRetryLater(IcebergCommittable another) {}

    @Override
    public void signalAlreadyCommitted() {}
  }
}
