//! `table`: writes a plan as a tuning table for a library, and checks such tables.

mod check;
mod check_setting;
pub mod explain;
pub mod report;
mod schedule_check;
mod schedules;

use std::path::Path;

use fabricast_libraries::Library;
use fabricast_search::export::all_reduce_limit::Framework;
use fabricast_search::export::schedules::is_name;
use fabricast_search::export::{
    AnyTable, ComparedStrategies, DroppedStrategy, SavedPlan, TableError, all_reduce_limit, json, nccl_env, nccl_tuner,
    ncclx, open_mpi,
};
use fabricast_sim::schedule::format::Format as ScheduleFormat;

use crate::args::{TableArgs, TableFormat};
use crate::failure::Failure;
use crate::files;
use crate::output::Output;

pub fn run(args: &TableArgs, output: &Output) -> Result<(), Failure> {
    if let Some(file) = &args.check {
        return check::run(file, args, output);
    }
    let Some(path) = &args.plan else { return Err(Failure::input("no plan is given")) };
    let plan = read_plan(path)?;
    let Some(to) = args.to else {
        if args.explain {
            return explain::write(&plan, ComparedStrategies::Picks, output);
        }
        return Err(Failure::input_with_help(
            "no output format is given",
            "add --to nccl-tuner, for example, or --explain",
        ));
    };
    if args.explain && output.file.is_none() {
        return Err(Failure::input_with_help(
            "--explain and --to both write to standard output",
            "name a file for the table with -o",
        ));
    }
    if let (Some(library @ (Library::OpenMpi(_) | Library::Rccl(_))), true) = (plan.library, to.is_nccl()) {
        return Err(Failure::input_with_help(
            format!("the plan is for {library}: it does not contain NCCL's choices and times"),
            "plan with --library nccl-2.28.9, for example",
        ));
    }
    match to {
        TableFormat::Mscclpp => folder(&plan, ScheduleFormat::Mscclpp, args, output)?,
        TableFormat::MscclXml => folder(&plan, ScheduleFormat::MscclXml, args, output)?,
        to => {
            let (text, dropped) = file(&plan, to);
            warn(&dropped, output);
            output.write(&text)?;
        }
    }
    let compared = if to.is_nccl() { ComparedStrategies::NcclTable } else { ComparedStrategies::Picks };
    if args.explain { explain::write(&plan, compared, &output.to_stdout()) } else { Ok(()) }
}

/// Reads a saved plan.
///
/// # Errors
/// [`Failure`]: the file cannot be read or is not a plan.
pub fn read_plan(path: &Path) -> Result<SavedPlan, Failure> {
    let text = fabricast_topologies::read::read_text_file(path, fabricast_topologies::read::Limit::TABLE)?;
    let name = path.display().to_string();
    SavedPlan::read(&text, &name).map_err(|error| match AnyTable::read(&text, &name) {
        Ok(table) if !matches!(table, AnyTable::Plan(_)) => Failure::input_with_help(
            format!("{name} is a table ({}), not a plan", table.format()),
            format!(
                "`fabricast table --check {name} --fabric …` checks and evaluates it; `plan --format json` makes plans"
            ),
        ),
        Err(_) if !text.trim_start().starts_with('{') => {
            let help = "a plan is what `plan … --format json -o FILE` writes";
            Failure::input_at(error.to_string(), Some(help.to_owned()), Some(&error.location))
        }
        _ => table_failure(&error),
    })
}

fn table_failure(error: &TableError) -> Failure {
    Failure::input_at(error.to_string(), None, Some(&error.location))
}

/// Writes a format that consists of a single file. Also returns the strategies that the format cannot express.
fn file(plan: &SavedPlan, to: TableFormat) -> (String, Vec<DroppedStrategy>) {
    match to {
        TableFormat::NcclEnv => nccl_env::write(plan),
        TableFormat::Vllm => all_reduce_limit::write(plan, Framework::Vllm),
        TableFormat::SglangEnv => all_reduce_limit::write(plan, Framework::Sglang),
        TableFormat::Ncclx => {
            let converted = ncclx::ConvertedRules::new(plan);
            (ncclx::write(&converted.rules), converted.dropped)
        }
        TableFormat::Openmpi => {
            let converted = open_mpi::ConvertedRules::new(plan);
            (open_mpi::write_classic(&converted.rules), converted.dropped)
        }
        TableFormat::OpenmpiJson => {
            let converted = open_mpi::ConvertedRules::new(plan);
            (open_mpi::write_json(&converted.rules), converted.dropped)
        }
        TableFormat::Json => (json::write(plan), Vec::new()),
        TableFormat::NcclTuner | TableFormat::Mscclpp | TableFormat::MscclXml => {
            let converted = nccl_tuner::ConvertedTable::new(plan);
            (nccl_tuner::write(&converted.table), converted.dropped)
        }
    }
}

/// Writes a format that consists of one file per size range to the folder of `-o`.
fn folder(plan: &SavedPlan, format: ScheduleFormat, args: &TableArgs, output: &Output) -> Result<(), Failure> {
    let Some(folder) = &output.file else {
        return Err(Failure::input_with_help("a file for each range of sizes needs a folder", "add -o DIR"));
    };
    let stage_file = |name: &str, text: &str| files::stage_text(folder, name, text, output.replace);
    let (staged, dropped) = schedules::files(plan, format, args, output, stage_file)?;
    warn(&dropped, output);
    if staged.is_empty() {
        return Err(Failure::input(format!("{} runs no pick of this plan: nothing is written", format.name())));
    }
    // Files of an earlier export in the folder may cover the sizes of the new files.
    let foreign = |names: &[String]| {
        let (count, first) =
            (super::format_count(names.len() as u64, "file"), names.first().map_or("", String::as_str));
        Failure::input_with_help(
            format!("{} has {count} of another export, {first} among them: nothing is written", folder.display()),
            "--force removes them; otherwise move them away or name another folder: both cover the same sizes",
        )
    };
    files::commit_replacing_folder(&staged, folder, |name| is_name(name, format), output.replace, foreign)
}

fn warn(dropped: &[DroppedStrategy], output: &Output) {
    for entry in dropped {
        output.warn(&format!("not in the table: {entry}"));
    }
}
