//! One writer with iceberg-rust, as its documentation has it; run by `run.py`.
//!
//!     clients OPERATION URI TOKEN TABLE REGION ROUNDS
//!
//! It prints `ready` when it has loaded the table, waits for a line, writes, and prints `landed` or `failed: WHY`.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use iceberg::arrow::schema_to_arrow_schema;
use iceberg::io::LocalFsStorageFactory;
use iceberg::spec::DataFileFormat;
use iceberg::table::Table;
use iceberg::transaction::{ApplyTransactionAction, Transaction};
use iceberg::writer::base_writer::data_file_writer::DataFileWriterBuilder;
use iceberg::writer::file_writer::ParquetWriterBuilder;
use iceberg::writer::file_writer::location_generator::{DefaultFileNameGenerator, DefaultLocationGenerator};
use iceberg::writer::file_writer::rolling_writer::RollingFileWriterBuilder;
use iceberg::writer::{IcebergWriter, IcebergWriterBuilder};
use iceberg::{Catalog, CatalogBuilder, Result, TableIdent};
use iceberg_catalog_rest::RestCatalogBuilder;
use parquet::file::properties::WriterProperties;

async fn append(catalog: &dyn Catalog, table: &Table, region: i64, number: i64) -> Result<()> {
    let schema = Arc::new(schema_to_arrow_schema(table.metadata().current_schema())?);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![region * 1000 + 100 + number])),
        Arc::new(StringArray::from(vec![format!("r{region}")])),
        Arc::new(Int64Array::from(vec![number])),
    ];
    let rows = RecordBatch::try_new(schema, columns).expect("columns of the schema");
    let files = RollingFileWriterBuilder::new_with_default_file_size(
        ParquetWriterBuilder::new(WriterProperties::default(), table.metadata().current_schema().clone()),
        table.file_io().clone(),
        DefaultLocationGenerator::new(table.metadata())?,
        DefaultFileNameGenerator::new(format!("rust-{region}-{number}"), None, DataFileFormat::Parquet),
    );
    let mut writer = DataFileWriterBuilder::new(files).build(None).await?;
    writer.write(rows).await?;
    let written = writer.close().await?;
    let transaction = Transaction::new(table);
    let action = transaction.fast_append().add_data_files(written);
    action.apply(transaction)?.commit(catalog).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().collect();
    let (uri, token, name) = (&given[2], &given[3], &given[4]);
    let (region, rounds): (i64, i64) = (given[5].parse().unwrap(), given[6].parse().unwrap());
    let mut properties = HashMap::from([("uri".to_string(), uri.clone())]);
    if !token.is_empty() {
        properties.insert("token".to_string(), token.clone());
    }
    let catalog = RestCatalogBuilder::default()
        .with_storage_factory(Arc::new(LocalFsStorageFactory))
        .load("lake", properties)
        .await?;
    let identifier = TableIdent::from_strs(name.split('.'))?;
    for number in 0..rounds {
        let table = catalog.load_table(&identifier).await?;
        println!("ready");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).unwrap();
        match append(&catalog, &table, region, number).await {
            Ok(()) => println!("landed"),
            Err(error) => println!("failed: {}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}
