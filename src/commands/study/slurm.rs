//! Job scripts that run a study on a Slurm cluster: an array with a task for each shard, and a merge of their results.
//!
//! A task runs `study --shard`, which saves each run when it ends. If Slurm requeues a task, the saved runs are
//! therefore not repeated.

use std::path::Path;
use std::process::Command;

use crate::args::{SlurmArgs, StudyArgs};
use crate::failure::Failure;
use crate::files;
use crate::output::Output;

/// Script of the array.
const TASKS: &str = "tasks.sbatch";
/// Script of the merge.
const MERGE: &str = "merge.sbatch";
/// Script that submits the array and the merge.
const SUBMIT: &str = "submit.sh";

/// Writes the scripts to the folder of `-o`, and submits them with `--submit`.
///
/// # Errors
/// [`Failure`]: no folder, the scripts cannot be written, or `sbatch` fails.
pub fn run(args: &StudyArgs, study: &Path, tasks: u32, output: &Output) -> Result<(), Failure> {
    let Some(folder) = output.file.as_deref() else {
        return Err(Failure::input(
            "--slurm writes job scripts and results to the folder of `-o DIR`: expected a folder",
        ));
    };
    let failed = |what: &str, error: &std::io::Error| Failure::Failed(format!("cannot find {what}: {error}"));
    let program = std::env::current_exe().map_err(|error| failed("this program", &error))?;
    let start = std::env::current_dir().map_err(|error| failed("the current folder", &error))?;
    let scripts = Scripts { program: &program, start: &start, study, folder, tasks, flags: &args.slurm_flags };
    files::write_folder(
        folder,
        &[(TASKS, scripts.tasks()), (MERGE, scripts.merge()), (SUBMIT, scripts.submit())],
        output.replace,
    )?;
    if !args.slurm_flags.submit {
        return output.to_stdout().write_message(&format!(
            "wrote {}, {TASKS} and {MERGE}: `bash {}` submits {tasks} tasks and a merge",
            folder.join(SUBMIT).display(),
            folder.join(SUBMIT).display()
        ));
    }
    let submitted = Command::new("bash").arg(folder.join(SUBMIT)).output();
    let submitted = submitted.map_err(|error| Failure::Failed(format!("cannot run {SUBMIT}: {error}")))?;
    if submitted.status.success() {
        return output.to_stdout().write(&String::from_utf8_lossy(&submitted.stdout));
    }
    let reason = String::from_utf8_lossy(&submitted.stderr).trim().to_owned();
    Err(Failure::Failed(format!("{} failed: {reason}", folder.join(SUBMIT).display())))
}

/// Inputs of the scripts.
#[derive(Clone, Copy)]
struct Scripts<'a> {
    program: &'a Path,
    /// Folder to which the paths of the study and of the results are relative.
    start: &'a Path,
    study: &'a Path,
    folder: &'a Path,
    tasks: u32,
    flags: &'a SlurmArgs,
}

impl Scripts<'_> {
    /// Script of the array, a task for each shard.
    fn tasks(&self) -> String {
        let count = self.tasks;
        let shards = quoted(&self.folder.join("shards"));
        self.script(
            &format!("#SBATCH --array=1-{count}\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"),
            &format!("--shard \"$SLURM_ARRAY_TASK_ID/{count}\" -o {shards}/\"$SLURM_ARRAY_TASK_ID\""),
        )
    }

    /// Script of the merge. The merged results equal those of a study on a single machine.
    fn merge(&self) -> String {
        let shards = self.folder.join("shards");
        let folders: Vec<String> = (1..=self.tasks).map(|task| quoted(&shards.join(task.to_string()))).collect();
        self.script("#SBATCH --requeue\n", &format!("--merge {} -o {}", folders.join(" "), quoted(self.folder)))
    }

    fn script(&self, directives: &str, arguments: &str) -> String {
        let (program, start, study) = (quoted(self.program), quoted(self.start), quoted(self.study));
        let SlurmArgs { partition, account, time, .. } = self.flags;
        let site = [("partition", partition), ("account", account), ("time", time)];
        let site =
            site.iter().filter_map(|(name, value)| value.as_deref().map(|value| format!("#SBATCH --{name}={value}\n")));
        let site: String = site.collect();
        format!(
            "#!/bin/bash\n#SBATCH --job-name=fabricast\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n{site}{directives}\
             set -euo pipefail\ncd {start}\nexec {program} study --quiet --threads \"${{SLURM_CPUS_ON_NODE:-1}}\" {arguments} -- {study}\n"
        )
    }

    /// Script that submits the array and, after all its tasks, the merge. Slurm expands `%` in names of log files.
    fn submit(&self) -> String {
        let folder = self.start.join(self.folder);
        let logs = quoted(Path::new(&folder.join("logs").display().to_string().replace('%', "%%")));
        let script = |name: &str| quoted(&folder.join(name));
        format!(
            "#!/bin/bash\n# Submits the study. Submitted again, it runs what is missing.\nset -euo pipefail\nmkdir -p {}\n\
             array=\"$(sbatch --parsable --output={logs}/%a.log {})\"\n\
             merge=\"$(sbatch --parsable --dependency=\"afterok:${{array%%;*}}\" --kill-on-invalid-dep=yes \
             --output={logs}/merge.log {})\"\n\
             echo \"array ${{array%%;*}} of {} tasks, merge ${{merge%%;*}}\"\n",
            script("logs"),
            script(TASKS),
            script(MERGE),
            self.tasks
        )
    }
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripts<'a>(folder: &'a Path, flags: &'a SlurmArgs) -> Scripts<'a> {
        let [program, start, study] = ["/opt/fabricast", "/home/a b", "it's.toml"].map(Path::new);
        Scripts { program, start, study, folder, tasks: 3, flags }
    }

    #[test]
    fn array_runs_a_shard_in_each_task() {
        let flags =
            SlurmArgs { partition: Some("cpu".to_owned()), time: Some("1:00:00".to_owned()), ..SlurmArgs::default() };
        let expected = "#!/bin/bash\n#SBATCH --job-name=fabricast\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n#SBATCH --partition=cpu\n\
             #SBATCH --time=1:00:00\n#SBATCH --array=1-3\n#SBATCH --requeue\n#SBATCH --open-mode=append\nset -euo pipefail\n\
             cd '/home/a b'\nexec '/opt/fabricast' study --quiet --threads \"${SLURM_CPUS_ON_NODE:-1}\" \
             --shard \"$SLURM_ARRAY_TASK_ID/3\" -o 'out/shards'/\"$SLURM_ARRAY_TASK_ID\" -- 'it'\\''s.toml'\n";
        assert_eq!(scripts(Path::new("out"), &flags).tasks(), expected);
    }

    #[test]
    fn merge_reads_every_shard_and_follows_the_array() {
        let flags = SlurmArgs::default();
        let scripts = scripts(Path::new("50%"), &flags);
        assert!(
            scripts
                .merge()
                .contains("--merge '50%/shards/1' '50%/shards/2' '50%/shards/3' -o '50%' -- 'it'\\''s.toml'\n")
        );
        let submit = scripts.submit();
        assert!(submit.contains("--output='/home/a b/50%%/logs'/%a.log '/home/a b/50%/tasks.sbatch'"), "{submit}");
        assert!(submit.contains("--dependency=\"afterok:${array%%;*}\""), "{submit}");
    }
}
