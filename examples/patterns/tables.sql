-- The tables of docs/patterns.md's example. An administrator creates them, in Spark.
CREATE NAMESPACE IF NOT EXISTS fleet;
CREATE NAMESPACE IF NOT EXISTS system;

-- Read-heavy agents keep a summary of each machine; many change the same few rows.
CREATE TABLE fleet.summaries (
  machine BIGINT NOT NULL, state STRING, _event_time TIMESTAMP, _idempotency_key STRING)
USING iceberg TBLPROPERTIES (
  'format-version' = '3',
  'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read');
ALTER TABLE fleet.summaries SET IDENTIFIER FIELDS machine;
CREATE TABLE fleet.summaries_deltas (
  machine BIGINT, state STRING, _event_time TIMESTAMP, _idempotency_key STRING, _operation STRING, _agent STRING)
USING iceberg PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '3');

-- Write-heavy agents add batches of readings, each into the partition of its minute.
CREATE TABLE fleet.readings (machine BIGINT, value DOUBLE, slot TIMESTAMP, _idempotency_key STRING)
USING iceberg PARTITIONED BY (slot);

-- Alerting agents record anomalies, each once.
CREATE TABLE fleet.anomalies (machine BIGINT, what STRING, _idempotency_key STRING) USING iceberg;
CREATE TABLE fleet.anomalies_wal (
  machine BIGINT, what STRING, _idempotency_key STRING, _written_at TIMESTAMP, _agent STRING)
USING iceberg PARTITIONED BY (_agent) TBLPROPERTIES ('format-version' = '3');
