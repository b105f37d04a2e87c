//! Strategy of a measured row: the forced settings, completed by the predicted choice of the library.

use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::nccl::{NcclVersion, Settings};
use fabricast_libraries::{BufferRegistration, Chooser, Conditions, Library, rccl};
use fabricast_sim::profile::MeasuredNetwork;
use fabricast_sim::schedule::{BufferUse, Call, Protocol, Rank, ReduceOp};
use fabricast_topologies::route::Router;

use crate::measured::manifest::{Configuration, Measurement, RegistrationKind as Windows};
use crate::measured::{LibraryName, Row};

/// Look-up of the strategies of one measurement's rows.
pub struct Strategies<'a> {
    measurement: &'a Measurement,
    chooser: Option<Chooser>,
}

impl<'a> Strategies<'a> {
    /// Creates the look-up for a measurement, on the routes of its fabric. If the selection rules of the library are
    /// not known, only strategies of schedules that fabricast ran itself are known.
    #[must_use]
    pub fn new(measurement: &'a Measurement, router: &Router<'_>) -> Self {
        let chooser = library(measurement).map(|library| {
            let placement = measurement.fabric.gpus();
            let conditions = conditions(measurement);
            Chooser::new(library, &measurement.fabric, router, placement, conditions)
        });
        Self { measurement, chooser }
    }

    /// Strategy of a row. `None` if the library's selection rules do not determine a strategy, or contradict a forced
    /// algorithm or protocol.
    #[must_use]
    pub fn strategy(&self, row: &Row) -> Option<Strategy> {
        if let Some(named) = forced_strategy(&self.measurement.configuration) {
            return Some(named);
        }
        let (call, dtype) = (call(self.measurement, row), self.measurement.dtype(row));
        let op = row.op.unwrap_or(ReduceOp::Sum);
        let strategy = self.chooser.as_ref()?.choose_for_elements(&call, dtype, op).ok()?.strategy;
        let Configuration { algorithm, protocol, .. } = self.measurement.configuration;
        let as_forced = algorithm.is_none_or(|forced| forced == strategy.algorithm)
            && protocol.is_none_or(|forced| forced == strategy.protocol);
        as_forced.then_some(strategy)
    }
}

/// Strategy of a schedule that fabricast ran itself, to which no library rule applies. `None` for other libraries, and
/// if algorithm, protocol or channels are not stated.
fn forced_strategy(configuration: &Configuration) -> Option<Strategy> {
    let is_fabricast = configuration.library.as_ref().is_some_and(|library| library.name == LibraryName::Fabricast);
    let (algorithm, protocol, channels) =
        (configuration.algorithm?, configuration.protocol?, configuration.channels.filter(|_| is_fabricast)?);
    Some(Strategy::new(algorithm, protocol, channels))
}

/// Call that a row measured. It is in place only if the row has no out-of-place time.
#[must_use]
pub fn call(measurement: &Measurement, row: &Row) -> Call {
    Call {
        collective: measurement.configuration.collective,
        bytes: row.bytes,
        ranks: measurement.fabric.gpus().len() as u32,
        root: Rank(row.root.unwrap_or(0)),
        buffers: if row.out_of_place.is_some() { BufferUse::OutOfPlace } else { BufferUse::InPlace },
    }
}

/// Library whose selection rules apply: the measured version of NCCL or RCCL, or the nearest known one. If the
/// measurement names no library, the newest one of the GPUs' vendor. `None` for other libraries.
pub(crate) fn library(measurement: &Measurement) -> Option<Library> {
    let of_vendor = Library::from_vendor(&measurement.fabric, measurement.fabric.gpus());
    let Some(library) = &measurement.configuration.library else { return Some(of_vendor) };
    match (library.name, of_vendor) {
        // rccl-tests prints the name of NCCL, so AMD GPUs identify RCCL.
        (LibraryName::Rccl, _) | (LibraryName::Nccl, Library::Rccl(_)) => {
            Some(Library::Rccl(rccl::RcclVersion::nearest(&library.version).unwrap_or(rccl::RcclVersion::NEWEST)))
        }
        (LibraryName::Nccl, _) => {
            Some(Library::Nccl(NcclVersion::nearest(&library.version).unwrap_or(NcclVersion::NEWEST)))
        }
        _ => None,
    }
}

/// Conditions of the library's choice in a measurement: the environment, and the forced settings as NCCL variables.
/// Element type and reduction apply to rows that state none.
fn conditions(measurement: &Measurement) -> Conditions {
    let configuration = &measurement.configuration;
    Conditions {
        settings: settings(measurement),
        dtype: configuration.dtype,
        op: ReduceOp::Sum,
        registered: match configuration.registered {
            Windows::Plain => BufferRegistration::Plain,
            Windows::Symmetric => BufferRegistration::Symmetric,
        },
        in_network: configuration.in_network,
    }
}

/// NCCL settings of a measurement. A variable with an invalid value is ignored, and the others apply.
fn settings(measurement: &Measurement) -> Settings {
    let configuration = &measurement.configuration;
    let mut variables = configuration.env.clone();
    let mut force = |name: &str, value: String| variables.push((name.to_owned(), value));
    if let Some(algorithm) = configuration.algorithm {
        force("NCCL_ALGO", algorithm.name().replace('_', ""));
    }
    if let Some(protocol) = configuration.protocol.filter(|protocol| *protocol != Protocol::Symmetric) {
        force("NCCL_PROTO", protocol.to_string());
    }
    if let Some(channels) = configuration.channels {
        force("NCCL_MIN_CTAS", channels.to_string());
        force("NCCL_MAX_CTAS", channels.to_string());
    }
    let plugin = MeasuredNetwork::for_machine(&measurement.fabric).ok().flatten().and_then(|network| network.settings);
    for word in plugin.iter().flat_map(|settings| settings.split_whitespace()) {
        // Settings of the network plugin apply only to variables that the measurement does not set.
        if let Some((name, value)) = word.split_once('=')
            && !variables.iter().any(|(set, _)| set == name)
        {
            variables.push((name.to_owned(), value.to_owned()));
        }
    }
    let mut settings = Settings::default();
    for (name, value) in &variables {
        let _ = settings.set(name, value);
    }
    settings
}
