//! Flags of `table`, and of `plan diff`.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};

use super::shared::collective_choice;
use super::{ClusterArgs, CollectiveChoice, CostArgs, LibraryArgs, PlanArgs, Sizes, VerifyArgs};

/// A plan is made, or two are compared.
#[derive(Debug)]
pub enum PlanCommand {
    /// Make one.
    Make(Box<PlanArgs>),
    /// Compare two that were saved.
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

/// Two saved plans.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The one, as `plan --format json -o A` wrote it
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// The other
    #[arg(value_name = "B")]
    pub after: PathBuf,
}

/// A table to write or to check.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// A plan, as `plan --format json -o PLAN` wrote it
    #[arg(value_name = "PLAN", required_unless_present = "check")]
    pub plan: Option<PathBuf>,
    /// What to write it as
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: Option<TableFormat>,
    #[command(flatten)]
    pub verify: VerifyArgs,
    /// List where the table departs from the library's own choice, with the gain predicted, the band around it and, where
    /// both were measured, the gain measured; with --to it needs -o, for the file
    #[arg(long)]
    pub explain: bool,
    /// Check and price a table: any of the formats of --to, whoever wrote it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "to", "explain"], requires = "fabric")]
    pub check: Option<PathBuf>,
    /// A preset (`fabric list`), a spec (TOML), an NCCL topology file (XML), or the output of `nvidia-smi topo -m`; with
    /// PLAN, where schedules are written and the plan does not say which fabric it was
    #[arg(long, value_name = "NAME|FILE", help_heading = "Fabric")]
    pub fabric: Option<String>,
    #[command(flatten)]
    pub size: ClusterArgs,
    /// No reduction or multicast in NVSwitches
    #[arg(long, help_heading = "Fabric")]
    pub no_nvls: bool,
    /// Price this collective only, or `all` that the table speaks of
    #[arg(long, value_name = "NAME", value_parser = collective_choice, help_heading = "Call")]
    pub collective: Option<CollectiveChoice>,
    /// Price these sizes, both ends included [default: 1KiB..1GiB by factors of 2]
    #[arg(long, value_name = "A..B[:FACTOR]", allow_negative_numbers = true, help_heading = "Call")]
    pub sizes: Option<Sizes>,
    #[command(flatten)]
    pub library: LibraryArgs,
    #[command(flatten)]
    pub costs: CostArgs,
}

/// Formats of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// The CSV of NCCL's example tuner plugin, which fabricast's plugin reads too
    NcclTuner,
    /// NCCL_ALGO and NCCL_PROTO, as a file for NCCL_CONF_FILE
    NcclEnv,
    /// Execution plans of MSCCL++, a file for each range of sizes
    Mscclpp,
    /// Algorithm files of MSCCL and RCCL, a file for each range of sizes
    MscclXml,
    /// Rules of Open MPI's tuned collectives, the classic format
    Openmpi,
    /// The same as JSON, which Open MPI 6.0 reads
    OpenmpiJson,
    /// fabricast's own, which its tuner plugin reads too
    Json,
}

impl TableFormat {
    /// Whether NCCL loads it.
    pub fn is_nccl(self) -> bool {
        matches!(self, Self::NcclTuner | Self::NcclEnv)
    }
}
