//! Arguments of `table` and `plan diff`.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};

use super::shared::collective_choice;
use super::{ClusterArgs, CollectiveChoice, CostArgs, LibraryArgs, PlanArgs, Sizes, VerifyArgs};

/// `plan`, or its subcommand `plan diff`.
#[derive(Debug)]
pub enum PlanCommand {
    /// Make a plan.
    Make(Box<PlanArgs>),
    /// Compare two saved plans.
    Diff(DiffArgs),
}

impl FromArgMatches for PlanCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand() {
            Some((_, diff)) => DiffArgs::from_arg_matches(diff).map(Self::Diff),
            None => PlanArgs::from_arg_matches(matches).map(Box::new).map(Self::Make),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for PlanCommand {
    fn augment_args(command: clap::Command) -> clap::Command {
        let diff = clap::Command::new("diff").about("The rows in which two saved plans differ");
        PlanArgs::augment_args(command)
            .subcommand(DiffArgs::augment_args(diff))
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .disable_help_subcommand(true)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Print the rows in which two saved plans differ
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// First plan, written by `plan --format json -o A`
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// Second plan
    #[arg(value_name = "B")]
    pub after: PathBuf,
}

/// Arguments of `table`: a table to write or to check.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// Plan, written by `plan --format json -o PLAN`
    #[arg(value_name = "PLAN", required_unless_present = "check")]
    pub plan: Option<PathBuf>,
    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: Option<TableFormat>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// List rows where the table differs from the library's choice, with the predicted gain
    ///
    /// Each gain has its prediction interval and, if both choices were measured, the measured gain. With --to, the
    /// table must be written to a file (-o).
    #[arg(long)]
    pub explain: bool,
    /// Table to check and to predict times for, in any format of --to
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "to", "explain"], requires = "fabric")]
    pub check: Option<PathBuf>,
    /// Fabric: preset (`fabric list`), spec (TOML), NCCL topology (XML), `nvidia-smi topo -m`
    ///
    /// With PLAN it is needed only for formats that contain schedules, if the plan does not name its fabric.
    #[arg(long, value_name = "NAME|FILE", help_heading = "Fabric")]
    pub fabric: Option<String>,
    #[command(flatten)]
    pub size: ClusterArgs,
    /// Disable NVLink SHARP (reduction and multicast in NVSwitches)
    #[arg(long, help_heading = "Fabric")]
    pub no_nvls: bool,
    /// Predict times of this collective only; `all`: every collective in the table
    #[arg(long, value_name = "NAME", value_parser = collective_choice, help_heading = "Call")]
    pub collective: Option<CollectiveChoice>,
    /// Message sizes: ranges, both ends included, or a list as in 64KiB,1MiB [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR][,C…]", allow_negative_numbers = true, help_heading = "Call")]
    pub sizes: Option<Sizes>,
    #[command(flatten)]
    pub library: LibraryArgs,
    #[command(flatten)]
    pub costs: CostArgs,
}

/// Formats of tuning tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// CSV of NCCL's example tuner plugin; fabricast's plugin reads it too
    NcclTuner,
    /// NCCL_ALGO and NCCL_PROTO, as a file for NCCL_CONF_FILE
    NcclEnv,
    /// CSV of NCCLX's built-in tuner
    Ncclx,
    /// Largest all_reduce of FlashInfer's kernels in vLLM, as a compilation config
    Vllm,
    /// Largest all_reduce of SGLang's own kernels, as an environment variable
    SglangEnv,
    /// Execution plans of MSCCL++, a file per size range
    Mscclpp,
    /// Algorithm files of MSCCL and RCCL, a file per size range
    MscclXml,
    /// Rules file of Open MPI's tuned collectives, classic format
    Openmpi,
    /// Rules file of Open MPI's tuned collectives, JSON format of Open MPI 6.0
    OpenmpiJson,
    /// fabricast's JSON; its tuner plugin reads it too
    Json,
}

impl TableFormat {
    /// Returns true if NCCL loads the format.
    pub fn is_nccl(self) -> bool {
        matches!(self, Self::NcclTuner | Self::NcclEnv | Self::Ncclx)
    }
}
