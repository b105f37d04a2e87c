//! Measurements whose times are not known yet.

use std::sync::Arc;

use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType};
use fabricast_topologies::{FabricRequest, SourceLocation, load};
use fabricast_validate::measured::manifest::{Configuration, Measurement, Notes, RegistrationKind, Role};
use fabricast_validate::measured::{LogContext, Row};

/// Returns the configuration of a run by the library's own choice, with a process per GPU and calls on a stream.
pub(crate) fn own_choice(nodes: u32, gpus: u32, collective: Collective) -> Configuration {
    Configuration {
        nodes,
        gpus,
        collective,
        algorithm: None,
        protocol: None,
        channels: None,
        library: None,
        in_network: InNetwork::Allowed,
        registered: RegistrationKind::Plain,
        launch: Launch::Stream,
        processes: Processes::PerGpu,
        dtype: DataType::F32,
        env: Vec::new(),
    }
}

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
