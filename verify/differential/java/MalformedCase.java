package org.apache.iceberg;

/** The case itself breaks the case format: its author's mistake, never a verdict of Iceberg. */
class MalformedCase extends RuntimeException {
  MalformedCase(String message, Object... arguments) {
    super(String.format(message, arguments));
  }
}
