package icetower.demo;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
import org.apache.iceberg.io.SeekableInputStream;

/**
 * Local files for Spark, each call of which takes as long as it would on S3: the same as slow_io.py.
 *
 * The durations come from the catalog's properties, which latency.py gives. Each read of a file is one GET; its PUT
 * happens when the stream is closed. Janino compiles this file, so it uses neither lambdas nor type inference.
 */
public class SlowFileIO extends HadoopFileIO {
  public InputFile newInputFile(String location) {
    return new SlowInput(super.newInputFile(location), this, false);
  }

  public InputFile newInputFile(String location, long length) {
    return new SlowInput(super.newInputFile(location, length), this, true);
  }

  public OutputFile newOutputFile(String location) {
    return new SlowOutput(super.newOutputFile(location), this);
  }

  public void deleteFile(String location) {
    this.get();
    super.deleteFile(location);
  }

  void get() {
    this.pause(this.number("get-median-ms"), this.number("get-sigma"));
  }

  void put(long bytes) {
    double medianMs = this.number("put-base-ms") + this.number("put-ms-per-mib") * bytes / (1024 * 1024);
    this.pause(medianMs, this.number("put-sigma"));
  }

  private double number(String name) {
    return Double.parseDouble((String) this.properties().get("latency." + name));
  }

  private void pause(double medianMs, double sigma) {
    double drawnMs = medianMs * Math.exp(sigma * ThreadLocalRandom.current().nextGaussian());
    try {
      Thread.sleep(Math.round(Math.max(this.number("floor-ms"), drawnMs)));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new RuntimeException(interrupted);
    }
  }
}

class SlowInput implements InputFile {
  private final InputFile file;
  private final SlowFileIO io;
  private final boolean lengthKnown;

  SlowInput(InputFile file, SlowFileIO io, boolean lengthKnown) {
    this.file = file;
    this.io = io;
    this.lengthKnown = lengthKnown;
  }

  public long getLength() {
    if (!this.lengthKnown) {
      this.io.get();
    }
    return this.file.getLength();
  }

  public SeekableInputStream newStream() {
    this.io.get();
    return this.file.newStream();
  }

  public String location() {
    return this.file.location();
  }

  public boolean exists() {
    this.io.get();
    return this.file.exists();
  }
}

class SlowOutput implements OutputFile {
  private final OutputFile file;
  private final SlowFileIO io;

  SlowOutput(OutputFile file, SlowFileIO io) {
    this.file = file;
    this.io = io;
  }

  public PositionOutputStream create() {
    return new SlowStream(this.file.create(), this.io);
  }

  public PositionOutputStream createOrOverwrite() {
    return new SlowStream(this.file.createOrOverwrite(), this.io);
  }

  public String location() {
    return this.file.location();
  }

  public InputFile toInputFile() {
    return new SlowInput(this.file.toInputFile(), this.io, false);
  }
}

class SlowStream extends PositionOutputStream {
  private final PositionOutputStream stream;
  private final SlowFileIO io;
  private boolean closed = false;

  SlowStream(PositionOutputStream stream, SlowFileIO io) {
    this.stream = stream;
    this.io = io;
  }

  public long getPos() throws IOException {
    return this.stream.getPos();
  }

  public long storedLength() throws IOException {
    return this.stream.storedLength();
  }

  public void write(int each) throws IOException {
    this.stream.write(each);
  }

  public void write(byte[] bytes, int from, int length) throws IOException {
    this.stream.write(bytes, from, length);
  }

  public void flush() throws IOException {
    this.stream.flush();
  }

  public void close() throws IOException {
    if (!this.closed) {
      this.closed = true;
      long written = this.stream.getPos();
      this.io.put(written);
      this.stream.close();
    }
  }
}
