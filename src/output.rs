//! Output of results to standard output or to the file of `-o`, in one step, so that a failure leaves no partial file.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabricast_reports::table::{Style, TextOptions};
use fabricast_topologies::visible::{visible_in_strings, visible_lines};

use crate::args::GlobalArgs;
use crate::control::Control;
use crate::failure::Failure;
use crate::files::{self, Replace, StagedFile};
use crate::output_format::{Format, PathKind};
use crate::terminal::{self, Colours, write_stderr};
use crate::warning_queue::WarningQueue;

/// File that is written together with a result.
#[derive(Clone, Copy, Debug)]
pub struct AdditionalFile<'a> {
    pub path: &'a Path,
    pub content: &'a [u8],
}

/// Verbosity of messages on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Also warnings, and progress on a terminal.
    Normal,
    /// Also sources of parameters and wall time.
    Verbose,
}

/// Width of tables on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableWidth {
    /// Columns that do not fit the terminal are hidden.
    Terminal,
    /// All columns are shown.
    Unlimited,
}

/// Destination and format of results.
#[derive(Clone, Debug)]
pub struct Output {
    /// Format of the result.
    pub format: Format,
    /// Path of the output file; standard output if `None`.
    pub file: Option<PathBuf>,
    /// Verbosity of messages on standard error.
    pub verbosity: Verbosity,
    /// Policy for replacing existing files.
    pub replace: Replace,
    /// Caller in this process, which receives results and warnings in place of standard output and standard error.
    caller: Option<Arc<Control>>,
    /// Width of tables on a terminal.
    pub width: TableWidth,
    /// Columns of tables to show; empty for all.
    pub columns: Vec<String>,
    /// Warnings that a terminal shows after the result.
    warnings: Arc<WarningQueue>,
}

impl Output {
    /// Creates the output from the flags. A file that cannot be written is reported before any work.
    ///
    /// # Errors
    /// [`Failure`]: the parent folder of the output file does not exist, or the path has the wrong type (file or
    /// folder).
    pub fn new(flags: &GlobalArgs, kind: PathKind) -> Result<Self, Failure> {
        match (&flags.output, kind) {
            (Some(path), PathKind::File) => files::check(path)?,
            (Some(path), PathKind::Folder) if path.is_dir() => files::sweep(path),
            (Some(path), PathKind::Folder) if path.exists() && !path.is_dir() => {
                let message = format!("cannot write to {}: it is a file; expected a folder", path.display());
                return Err(Failure::input(message));
            }
            _ => {}
        }
        let verbosity = match (flags.quiet, flags.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        let width = if flags.wide { TableWidth::Unlimited } else { TableWidth::Terminal };
        let replace = if flags.force { Replace::All } else { Replace::Own };
        Ok(Self {
            format: flags.format,
            file: flags.output.clone(),
            verbosity,
            replace,
            caller: None,
            width,
            columns: flags.columns.clone(),
            warnings: Arc::new(WarningQueue::new()),
        })
    }

    /// Creates the output of JSON to a caller in this process.
    pub fn for_caller(caller: Arc<Control>) -> Self {
        let (format, verbosity, replace) = (Format::Json, Verbosity::Normal, Replace::Own);
        let (width, columns) = (TableWidth::Unlimited, Vec::new());
        let warnings = Arc::new(WarningQueue::new());
        Self { format, file: None, verbosity, replace, caller: Some(caller), width, columns, warnings }
    }

    /// Returns this output with a caller in this process as its destination.
    pub fn to_caller(&self, caller: Arc<Control>) -> Self {
        Self { caller: Some(caller), ..self.clone() }
    }

    /// Flag by which the caller stops the command; `None` on the command line, where signals end the process.
    pub fn interrupt(&self) -> Option<&AtomicBool> {
        self.caller.as_deref().map(Control::flag)
    }

    /// Returns [`Failure::Interrupted`] if the caller has stopped the command.
    pub fn check_interrupt(&self) -> Result<(), Failure> {
        match self.interrupt() {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(Failure::Interrupted),
            _ => Ok(()),
        }
    }

    /// Passes a result to the caller in this process, if there is one.
    pub fn pass_to_caller(&self, text: &str) {
        if let Some(caller) = &self.caller {
            caller.set_result(text);
        }
    }

    /// Returns this output with a file as its destination if `-o` names none. For output to a caller in this process,
    /// the destination is unchanged.
    ///
    /// # Errors
    /// [`Failure`]: the default file cannot be written, because its path is a folder.
    pub fn with_default_file(&self, name: &str) -> Result<Self, Failure> {
        if self.file.is_some() || self.caller.is_some() {
            return Ok(self.clone());
        }
        files::check(Path::new(name))?;
        Ok(Self { file: Some(name.into()), verbosity: self.verbosity.min(Verbosity::Quiet), ..self.clone() })
    }

    /// Writes a line that describes a completed action to standard output, unless quiet.
    ///
    /// # Errors
    /// [`Failure`]: standard output cannot be written.
    pub fn write_message(&self, line: &str) -> Result<(), Failure> {
        if self.verbosity == Verbosity::Quiet || self.caller.is_some() {
            return Ok(());
        }
        let printed = terminal::print(&format!("{line}\n"), Colours::None)
            .map_err(|error| Failure::input(format!("cannot write to standard output: {error}")));
        self.release_warnings();
        printed
    }

    /// Returns this output with standard output as its destination.
    pub fn to_stdout(&self) -> Self {
        Self { file: None, ..self.clone() }
    }

    /// Writes a warning to standard error, unless quiet. If a terminal shows both the result and warnings, the result comes
    /// first.
    pub fn warn(&self, message: &str) {
        if let Some(caller) = &self.caller {
            caller.add_warning(message);
        } else if self.verbosity > Verbosity::Quiet {
            let is_shared = self.file.is_none() && terminal::is_output_shown() && terminal::is_error_shown();
            let due = if is_shared { self.warnings.hold(message) } else { Some(message) };
            due.into_iter().for_each(write_warning);
        }
    }

    /// Writes the warnings that are held for the result, when it is written or if there is none.
    pub fn release_warnings(&self) {
        self.warnings.release().iter().for_each(|message| write_warning(message));
    }

    /// Writes a detail to standard error, if verbose.
    pub fn detail(&self, message: &str) {
        if self.verbosity == Verbosity::Verbose && self.caller.is_none() {
            write_stderr(message);
        }
    }

    /// Caller in this process that requested progress.
    pub fn progress_receiver(&self) -> Option<&Control> {
        self.caller.as_deref().filter(|caller| caller.is_progress_requested())
    }

    /// Returns true if progress may be shown: on a terminal, unless quiet.
    pub fn shows_progress(&self) -> bool {
        self.verbosity > Verbosity::Quiet && self.caller.is_none() && terminal::is_error_shown()
    }

    /// Style of tables: colours and the terminal's width on a terminal; elsewhere plain, and unlimited unless COLUMNS is
    /// set. Files are always plain and unlimited.
    pub fn text_options(&self) -> TextOptions {
        let plain = TextOptions { columns: self.columns.clone(), ..TextOptions::default() };
        if self.file.is_some() || self.caller.is_some() {
            return plain;
        }
        let is_limited = self.width == TableWidth::Terminal;
        if !terminal::is_output_shown() {
            return TextOptions { width: terminal::stated_width().filter(|_| is_limited), ..plain };
        }
        TextOptions { style: Style::Colour, width: terminal::width().filter(|_| is_limited), ..plain }
    }

    /// Returns an error if an additional output file cannot be written, or is the result's own file.
    pub fn check_additional_file(&self, path: &Path) -> Result<(), Failure> {
        if self.file.as_deref() == Some(path) {
            return Err(Failure::input(format!("{} is named twice: expected two files", path.display())));
        }
        files::check(path)
    }

    /// Returns an error if the result's file exists and fabricast did not write it. Commands whose results are never
    /// reproduced byte for byte call this before their work.
    pub fn check_replaceable(&self) -> Result<(), Failure> {
        self.file.as_deref().map_or(Ok(()), |path| files::check_replaceable(path, self.replace))
    }

    /// Writes a result, with one newline at its end.
    ///
    /// # Errors
    /// [`Failure`]: the caller has stopped the command, or the destination cannot be written or may not be replaced.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        self.write_with(text, None)
    }

    /// Writes a result and an additional file, or neither.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_with(&self, text: &str, additional_file: Option<AdditionalFile<'_>>) -> Result<(), Failure> {
        self.write_with_files(text, additional_file.as_slice())
    }

    /// Writes a result and additional files: all of them, or none.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_with_files(&self, text: &str, additional_files: &[AdditionalFile<'_>]) -> Result<(), Failure> {
        self.write_all(text, additional_files, Vec::new(), files::commit)
    }

    /// Writes a result, additional files and files that are already staged: all of them, or none. `commit` moves them.
    ///
    /// # Errors
    /// As for [`Self::write`], and errors of `commit`.
    pub fn write_all(
        &self,
        text: &str,
        additional_files: &[AdditionalFile<'_>],
        mut staged: Vec<StagedFile>,
        commit: impl FnOnce(&[StagedFile]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.check_interrupt()?;
        let text = format!("{}\n", text.trim_end_matches('\n'));
        let coloured = self.format == Format::Text && self.text_options().style == Style::Colour;
        // Text files may be shown on a terminal, so control characters are made visible. JSON uses escapes, which
        // parsers decode.
        let text = match text.trim_start().starts_with(['{', '[']) || self.format == Format::Json {
            true => visible_in_strings(&text),
            false if coloured => Cow::Borrowed(text.as_str()),
            false => visible_lines(&text),
        };
        let result = self.file.as_deref().map(|path| AdditionalFile { path, content: text.as_bytes() });
        let named: Vec<AdditionalFile<'_>> = result.into_iter().chain(additional_files.iter().copied()).collect();
        let files: Vec<&Path> = named.iter().map(|file| file.path).collect();
        let new = named.iter().map(|file| StagedFile::new(file.path, file.content, self.replace));
        staged.extend(new.collect::<Result<Vec<_>, _>>()?);
        commit(&staged)?;
        if self.shows_progress() {
            files.iter().for_each(|path| write_stderr(&format!("wrote {}", path.display())));
        }
        self.pass_to_caller(&text);
        if self.file.is_some() || self.caller.is_some() {
            return Ok(());
        }
        let colours = if coloured { Colours::Marked } else { Colours::None };
        let printed = terminal::print(&text, colours)
            .map_err(|error| Failure::input(format!("cannot write to standard output: {error}")));
        self.release_warnings();
        printed
    }

    /// Writes a value as a result in JSON.
    ///
    /// # Errors
    /// As for [`json()`] and [`Self::write`].
    pub fn write_json(&self, value: &impl serde::Serialize) -> Result<(), Failure> {
        self.write(&json(value)?)
    }
}

fn write_warning(message: &str) {
    write_stderr(&format!("warning: {message}"));
}

/// Formats a value as JSON with visible control characters.
///
/// # Errors
/// [`Failure`]: the value has no representation in JSON, for example a map whose keys are not texts.
pub fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))?;
    Ok(visible_in_strings(&text).into_owned())
}
