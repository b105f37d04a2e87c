//! Arguments of `schema`.

use clap::Args;

use crate::document::Document;

/// Arguments of `schema`.
#[derive(Clone, Copy, Debug, Args)]
pub struct SchemaArgs {
    /// Name of a JSON document, for example `plan`; default: list all documents
    ///
    /// The name is part of the document's key `format`: `plan` for `fabricast-plan/2`.
    #[arg(value_enum, value_name = "NAME")]
    pub document: Option<Document>,
}
