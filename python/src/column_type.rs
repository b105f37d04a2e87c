//! Arrow types of columns, derived from the JSON Schema of a document.
//!
//! Types therefore do not depend on the rows: a column without a value has the same type as in other results.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields};

use crate::value::Json;

/// Metadata key of a field for the meaning and unit of the column.
const DESCRIPTION: &str = "description";

/// Returns the type of the values that `schema` describes. `root` is the document's schema, in which references are
/// resolved.
///
/// Integers become `uint64` or `int64`, other numbers `float64`, objects structs and lists Arrow lists. Values of
/// several types, and objects without listed keys, become text: their JSON.
pub fn described(schema: &Json, root: &Json) -> DataType {
    if let Some(target) = schema.get("$ref").and_then(Json::text) {
        return target
            .strip_prefix("#/")
            .and_then(|path| path.split('/').try_fold(root, |value, key| value.get(key)))
            .map_or(DataType::Utf8, |schema| described(schema, root));
    }
    let alternatives: Vec<&Json> = ["anyOf", "oneOf"]
        .iter()
        .flat_map(|key| schema.get(key).map_or(&[][..], Json::items))
        .filter(|one| one.get("type").and_then(Json::text) != Some("null"))
        .collect();
    match alternatives.as_slice() {
        [] => {}
        [one] => return described(one, root),
        _ => return DataType::Utf8,
    }
    let types: Vec<&str> = match schema.get("type") {
        Some(Json::Text(one)) => vec![one],
        Some(Json::List(several)) => several.iter().filter_map(Json::text).filter(|one| *one != "null").collect(),
        _ => Vec::new(),
    };
    match types.as_slice() {
        ["boolean"] => DataType::Boolean,
        ["number"] => DataType::Float64,
        ["integer"] if matches!(schema.get("minimum"), Some(Json::Whole(_))) => DataType::UInt64,
        ["integer"] => DataType::Int64,
        ["array"] => schema.get("items").map_or(DataType::Utf8, |items| list(described(items, root))),
        ["object"] => structure(schema, root).map_or(DataType::Utf8, DataType::Struct),
        _ => DataType::Utf8,
    }
}

/// Returns the fields of an object with listed keys.
fn structure(schema: &Json, root: &Json) -> Option<Fields> {
    let fields = schema.get("properties")?.entries().iter().map(|(name, property)| {
        let field = Field::new(name, described(property, root), true);
        let description = property.get("description").and_then(Json::text);
        let metadata: HashMap<String, String> =
            description.map(|text| (DESCRIPTION.to_owned(), text.to_owned())).into_iter().collect();
        field.with_metadata(metadata)
    });
    Some(fields.collect())
}

/// Returns the type of values without a schema: the narrowest that holds all of them.
pub fn inferred(values: &[&Json]) -> DataType {
    let known: Vec<&Json> = values.iter().copied().filter(|value| **value != Json::Null).collect();
    let all = |is: fn(&Json) -> bool| !known.is_empty() && known.iter().all(|value| is(value));
    if all(|value| matches!(value, Json::Bool(_))) {
        DataType::Boolean
    } else if all(|value| matches!(value, Json::Whole(_))) {
        DataType::UInt64
    } else if all(|value| matches!(value, Json::Whole(_) | Json::Negative(_) | Json::Float(_))) {
        DataType::Float64
    } else if all(|value| matches!(value, Json::List(_))) {
        let items: Vec<&Json> = known.iter().flat_map(|value| value.items()).collect();
        list(inferred(&items))
    } else if all(|value| matches!(value, Json::Object(entries) if !entries.is_empty())) {
        let field = |name: &str| {
            let values: Vec<&Json> = known.iter().filter_map(|value| value.get(name)).collect();
            Field::new(name, inferred(&values), true)
        };
        DataType::Struct(keys(&known).into_iter().map(field).collect())
    } else {
        DataType::Utf8
    }
}

/// Returns the keys of objects in the order of their first appearance.
fn keys<'a>(objects: &[&'a Json]) -> Vec<&'a str> {
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in objects.iter().flat_map(|object| object.entries()) {
        if !keys.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    keys
}

/// Returns `data_type` with the fields of structs in the order of the rows; fields that no row has are last.
pub fn in_order_of(data_type: DataType, values: &[&Json]) -> DataType {
    match data_type {
        DataType::Struct(fields) => {
            let mut names = keys(values);
            names.extend(
                fields
                    .iter()
                    .map(|field| field.name().as_str())
                    .filter(|name| values.iter().all(|value| value.get(name).is_none())),
            );
            let ordered = names.into_iter().filter_map(|name| {
                let (_, field) = fields.find(name)?;
                let nested: Vec<&Json> = values.iter().filter_map(|value| value.get(name)).collect();
                let data_type = in_order_of(field.data_type().clone(), &nested);
                Some(field.as_ref().clone().with_data_type(data_type))
            });
            DataType::Struct(ordered.collect())
        }
        DataType::List(item) => {
            let items: Vec<&Json> = values.iter().flat_map(|value| value.items()).collect();
            list(in_order_of(item.data_type().clone(), &items))
        }
        other => other,
    }
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}
