//! Arguments of `schema`.

use clap::Args;

use crate::document::Document;

/// Arguments of `schema`.
#[derive(Clone, Copy, Debug, Args)]
pub struct SchemaArgs {
    /// JSON document, as in its key `format` (`fabricast-NAME/2`); default: list all documents
    #[arg(value_enum, value_name = "NAME")]
    pub document: Option<Document>,
}
