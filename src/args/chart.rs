//! Arguments of charts.

use clap::ValueEnum;
use fabricast_reports::chart::RateScale;

/// Scale of an axis of bus bandwidths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BandwidthAxis {
    /// Linear, for differences between large sizes
    Linear,
    /// Logarithmic, for differences between small sizes
    Log,
}

impl BandwidthAxis {
    /// Scale of the chart; `None`: chosen from the rates.
    pub fn scale(axis: Option<Self>) -> RateScale {
        match axis {
            None => RateScale::Automatic,
            Some(Self::Linear) => RateScale::Linear,
            Some(Self::Log) => RateScale::Logarithmic,
        }
    }
}
