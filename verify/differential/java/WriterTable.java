package org.apache.iceberg;

import java.util.regex.Pattern;
import org.apache.iceberg.encryption.EncryptionManager;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;

/**
 * One writer's own view of the table. It refreshes only when its writer does, gives the snapshot the id and the files
 * the names that the case chose, and stands between each attempt and its swap.
 */
final class WriterTable implements TableOperations {
  /** What happens after an attempt has made its snapshot and before its swap; true if the swap is to be lost. */
  interface BeforeSwap {
    boolean run(int attempt);
  }

  // Producers name their files by a random UUID; messages quote these names.
  private static final Pattern UUID =
      Pattern.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}");

  private final TableOperations table;
  private final long id;
  private BeforeSwap beforeSwap = attempt -> false;
  private boolean idGiven = false;
  private boolean swapping = false;
  private int swaps = 0;
  private Snapshot lastBase = null;

  WriterTable(TableOperations table, long id) {
    this.table = table;
    this.id = id;
  }

  long id() {
    return id;
  }

  void beforeSwap(BeforeSwap hook) {
    this.beforeSwap = hook;
  }

  /** The head that the last swap was tried on; null if there was none. */
  Snapshot lastBase() {
    return lastBase;
  }

  /** How often the writer came to its swap. */
  int swaps() {
    return swaps;
  }

  /** The attempts that the writer began, given that it has ended with a refusal. */
  int attempts() {
    return swapping ? swaps : swaps + 1;
  }

  @Override
  public void commit(TableMetadata base, TableMetadata metadata) {
    swaps++;
    swapping = true;
    lastBase = base.currentSnapshot();
    try {
      if (beforeSwap.run(swaps)) {
        throw new CommitFailedException("The case has this swap lost");
      }
      table.commit(base, metadata);
    } catch (CommitFailedException lost) {
      swapping = false;
      throw lost;
    }
  }

  @Override
  public long newSnapshotId() {
    if (idGiven) {
      throw new MalformedCase("snapshot %d is in the table already", id);
    }
    idGiven = true;
    return id;
  }

  @Override
  public String metadataFileLocation(String name) {
    return table.metadataFileLocation(UUID.matcher(name).replaceAll("w" + id));
  }

  @Override
  public TableMetadata current() {
    return table.current();
  }

  @Override
  public TableMetadata refresh() {
    return table.refresh();
  }

  @Override
  public FileIO io() {
    return table.io();
  }

  @Override
  public EncryptionManager encryption() {
    return table.encryption();
  }

  @Override
  public LocationProvider locationProvider() {
    return table.locationProvider();
  }

  @Override
  public boolean requireStrictCleanup() {
    return table.requireStrictCleanup();
  }
}
