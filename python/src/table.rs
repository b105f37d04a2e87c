//! Arrow tables of a document's rows.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder};
use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Fields, Schema};
use fabricast::Document;

use crate::column_type::{described, in_order_of, inferred};
use crate::value::Json;

/// Reason why a document has no table.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The text is not JSON.
    #[error("not a JSON document: {0}")]
    Syntax(#[from] serde_json::Error),
    /// The document has no list of this name.
    #[error("the result has no list `{0}`")]
    NoList(String),
    /// A value does not have the type of its column.
    #[error("{value} does not fit a column of type {data_type}")]
    Value {
        /// The value as JSON.
        value: String,
        /// Type of the column.
        data_type: DataType,
    },
    /// Error of Arrow for the columns.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

/// Returns a list of a document as a table, or with `None` the document as its only row.
///
/// # Errors
/// [`TableError`]: no such list, or values that contradict the schema of the document.
pub fn table(document: &Json, list: Option<&str>) -> Result<RecordBatch, TableError> {
    let rows: Vec<&Json> = match list {
        None => vec![document],
        Some(key) => match document.get(key) {
            Some(Json::List(rows)) => rows.iter().collect(),
            _ => return Err(TableError::NoList(key.to_owned())),
        },
    };
    let kind = document.get("format").and_then(Json::text).and_then(Document::from_format);
    let data_type = match kind {
        None => inferred(&rows),
        Some(kind) => {
            let schema: Json = serde_json::from_str(&serde_json::to_string(&kind.schema())?)?;
            let items = list.map(|key| schema.get("properties").and_then(|all| all.get(key)?.get("items")));
            items.unwrap_or(Some(&schema)).map_or_else(|| inferred(&rows), |items| described(items, &schema))
        }
    };
    // Objects of several forms have only some of the keys. Items that are no objects become a single column.
    let has_forms = !matches!(data_type, DataType::Struct(_)) && rows.iter().all(|row| matches!(row, Json::Object(_)));
    let data_type = if has_forms && !rows.is_empty() { inferred(&rows) } else { data_type };
    let DataType::Struct(fields) = in_order_of(data_type.clone(), &rows) else {
        let name = list.unwrap_or("value");
        let rows: Vec<Option<&Json>> = rows.into_iter().map(Some).collect();
        return Ok(RecordBatch::try_from_iter([(name, array(&rows, &data_type)?)])?);
    };
    // The format of a document is not a column of its row.
    let is_column = |name: &String| list.is_some() || name != "format";
    let fields: Fields = fields.iter().filter(|field| is_column(field.name())).cloned().collect();
    let columns: Result<Vec<ArrayRef>, TableError> = fields
        .iter()
        .map(|field| {
            let values: Vec<Option<&Json>> = rows.iter().map(|row| row.get(field.name())).collect();
            array(&values, field.data_type())
        })
        .collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns?)?)
}

/// Returns the values as an array. Absent values and `null` are null.
fn array(values: &[Option<&Json>], data_type: &DataType) -> Result<ArrayRef, TableError> {
    let values: Vec<Option<&Json>> = values.iter().map(|value| value.filter(|value| **value != Json::Null)).collect();
    let unfit = |value: &Json| TableError::Value { value: value.to_string(), data_type: data_type.clone() };
    macro_rules! primitive {
        ($builder:ty, $convert:expr) => {{
            let mut builder = <$builder>::with_capacity(values.len());
            for value in &values {
                builder.append_option(value.map(|value| $convert(value).ok_or_else(|| unfit(value))).transpose()?);
            }
            Ok(Arc::new(builder.finish()))
        }};
    }
    match data_type {
        DataType::Boolean => primitive!(BooleanBuilder, |value: &Json| match value {
            Json::Bool(value) => Some(*value),
            _ => None,
        }),
        DataType::UInt64 => primitive!(UInt64Builder, |value: &Json| match value {
            Json::Whole(value) => Some(*value),
            _ => None,
        }),
        DataType::Int64 => primitive!(Int64Builder, |value: &Json| match value {
            Json::Whole(value) => i64::try_from(*value).ok(),
            Json::Negative(value) => Some(*value),
            _ => None,
        }),
        DataType::Float64 => primitive!(Float64Builder, |value: &Json| match value {
            Json::Whole(value) => Some(*value as f64),
            Json::Negative(value) => Some(*value as f64),
            Json::Float(value) => Some(*value),
            _ => None,
        }),
        DataType::List(item) => {
            let lists: Vec<Option<&[Json]>> = values
                .iter()
                .map(|value| match value {
                    None => Ok(None),
                    Some(Json::List(items)) => Ok(Some(items.as_slice())),
                    Some(other) => Err(unfit(other)),
                })
                .collect::<Result<_, _>>()?;
            let items: Vec<Option<&Json>> = lists.iter().flatten().flat_map(|list| list.iter().map(Some)).collect();
            let offsets = OffsetBuffer::from_lengths(lists.iter().map(|list| list.map_or(0, <[Json]>::len)));
            let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
            Ok(Arc::new(ListArray::try_new(item.clone(), offsets, array(&items, item.data_type())?, Some(nulls))?))
        }
        DataType::Struct(fields) => {
            if let Some(other) = values.iter().flatten().find(|value| !matches!(value, Json::Object(_))) {
                return Err(unfit(other));
            }
            let columns: Result<Vec<ArrayRef>, TableError> = fields
                .iter()
                .map(|field| {
                    let nested: Vec<Option<&Json>> =
                        values.iter().map(|value| value.and_then(|v| v.get(field.name()))).collect();
                    array(&nested, field.data_type())
                })
                .collect();
            let nulls = NullBuffer::from_iter(values.iter().map(Option::is_some));
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns?, Some(nulls), values.len())?))
        }
        _ => {
            let mut builder = StringBuilder::new();
            for value in &values {
                builder.append_option(value.map(|value| value.text().map_or_else(|| value.to_string(), str::to_owned)));
            }
            Ok(Arc::new(builder.finish()))
        }
    }
}
