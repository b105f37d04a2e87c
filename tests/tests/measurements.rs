//! Measurements whose times are not known yet.

use std::sync::Arc;

use fabricast_topologies::{FabricRequest, SourceLocation, load};
use fabricast_validate::measured::manifest::{Configuration, Measurement, Notes, Role};
use fabricast_validate::measured::{LogContext, Row};

/// Returns a measurement of a configuration on a fabric with these rows, whose times are placeholders.
pub(crate) fn unmeasured(request: FabricRequest, configuration: Configuration, rows: Vec<Row>) -> Measurement {
    Measurement {
        location: SourceLocation::from_source("m"),
        file: "log".into(),
        name: "log".to_owned(),
        fabric: Arc::new(load(&request).unwrap()),
        request,
        configuration,
        role: Role::Fit,
        notes: Notes::default(),
        context: LogContext::default(),
        rows,
        rejected: Vec::new(),
    }
}
