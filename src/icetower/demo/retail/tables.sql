-- The tables of the three agents, as Spark creates them. A statement ends with a semicolon at the end of its line.

CREATE NAMESPACE IF NOT EXISTS tower.pricing;
CREATE NAMESPACE IF NOT EXISTS tower.inventory;
CREATE NAMESPACE IF NOT EXISTS tower.recommendations;
CREATE NAMESPACE IF NOT EXISTS tower.system;

-- One row a day, store and product, which the pricing agent updates hour by hour. Its updates are deletion vectors.
CREATE TABLE IF NOT EXISTS tower.pricing.product_prices (
    observed_at TIMESTAMP COMMENT 'when the price was last seen at a till',
    store_id BIGINT,
    product_id BIGINT,
    unit_price DECIMAL(9, 2) COMMENT 'null while no whole piece was sold',
    observations BIGINT,
    quantity BIGINT,
    sales_value DECIMAL(12, 2),
    _idempotency_key STRING COMMENT 'of the write that updated the row last'
)
USING iceberg
PARTITIONED BY (days(observed_at), bucket(8, product_id))
TBLPROPERTIES (
    'format-version' = '3',
    'write.merge.mode' = 'merge-on-read',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);

-- What leaves the shelves, as it happens.
CREATE TABLE IF NOT EXISTS tower.inventory.stock_movements (
    row_id BIGINT,
    moved_at TIMESTAMP,
    store_id BIGINT,
    product_id BIGINT,
    quantity BIGINT COMMENT 'negative: sold',
    sales_value DECIMAL(9, 2),
    _idempotency_key STRING
)
USING iceberg
PARTITIONED BY (hours(moved_at))
TBLPROPERTIES (
    'format-version' = '2',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);

-- What users look at and take. The recommendation agent appends to the log; the mediator merges the log into the table.
CREATE TABLE IF NOT EXISTS tower.recommendations.user_interactions (
    row_id BIGINT,
    interacted_at TIMESTAMP,
    household_id BIGINT,
    product_id BIGINT,
    basket_id BIGINT,
    quantity BIGINT,
    sales_value DECIMAL(9, 2),
    _idempotency_key STRING
)
USING iceberg
PARTITIONED BY (days(interacted_at))
TBLPROPERTIES (
    'format-version' = '2',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);

CREATE TABLE IF NOT EXISTS tower.recommendations.user_interactions_wal (
    row_id BIGINT,
    interacted_at TIMESTAMP,
    household_id BIGINT,
    product_id BIGINT,
    basket_id BIGINT,
    quantity BIGINT,
    sales_value DECIMAL(9, 2),
    _idempotency_key STRING,
    _agent STRING
)
USING iceberg
PARTITIONED BY (_agent)
TBLPROPERTIES (
    'format-version' = '2',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);

-- Products that were at a discount when they were last sold. Agents append changes to the delta table; the collector folds
-- them in, the last event first. A change that comes late or out of order is right nonetheless.
CREATE TABLE IF NOT EXISTS tower.pricing.promotions (
    product_id BIGINT,
    store_id BIGINT COMMENT 'where it was sold last',
    discount DECIMAL(9, 2),
    _event_time TIMESTAMP COMMENT 'of the last change',
    _idempotency_key STRING
)
USING iceberg
PARTITIONED BY (bucket(4, product_id))
TBLPROPERTIES (
    'format-version' = '3',
    'write.delete.mode' = 'merge-on-read',
    'write.update.mode' = 'merge-on-read',
    'write.merge.mode' = 'merge-on-read',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);

CREATE TABLE IF NOT EXISTS tower.pricing.promotions_deltas (
    product_id BIGINT,
    store_id BIGINT,
    discount DECIMAL(9, 2),
    _event_time TIMESTAMP,
    _idempotency_key STRING,
    _operation STRING COMMENT 'upsert or delete',
    _agent STRING
)
USING iceberg
PARTITIONED BY (_agent)
TBLPROPERTIES (
    'format-version' = '2',
    'write.distribution-mode' = 'hash',
    'commit.retry.num-retries' = '5',
    'commit.retry.min-wait-ms' = '100',
    'commit.retry.max-wait-ms' = '5000'
);
