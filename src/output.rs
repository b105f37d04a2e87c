//! Where results go: standard output or `-o FILE`, written at once so that a failure leaves nothing behind.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fabricast_reports::table::{Look, Style};
use fabricast_topologies::visible::{visible_in_strings, visible_lines};

use crate::args::GlobalArgs;
use crate::failure::Failure;
use crate::files::{self, Replace, Staged};
use crate::terminal::{self, Colours, note};

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// Stable keys, for programs.
    Json,
    /// One table.
    Csv,
}

/// How much is said besides the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Talk {
    /// Errors only.
    Quiet,
    /// Warnings, and progress on a terminal.
    Normal,
    /// Sources and wall time too.
    Verbose,
}

/// Where and in which form results are written.
#[derive(Clone, Debug)]
pub struct Output {
    /// The form.
    pub format: Format,
    /// The file; standard output where absent.
    pub file: Option<PathBuf>,
    /// How much is said besides.
    pub talk: Talk,
    /// Which existing files may be replaced.
    pub replace: Replace,
}

/// What `-o` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File,
    /// A folder, made if it is missing.
    Folder,
}

impl Output {
    /// As the flags say; a file that cannot be written is refused before any work.
    pub fn new(flags: &GlobalArgs, place: Place) -> Result<Self, Failure> {
        match (&flags.output, place) {
            (Some(path), Place::File) => files::check(path)?,
            (Some(path), Place::Folder) if path.is_dir() => files::sweep(path),
            (Some(path), Place::Folder) if path.exists() && !path.is_dir() => {
                let message = format!("cannot write to {}: it is a file; expected a folder", path.display());
                return Err(Failure::input(message));
            }
            _ => {}
        }
        let talk = match (flags.quiet, flags.verbose) {
            (true, _) => Talk::Quiet,
            (_, true) => Talk::Verbose,
            _ => Talk::Normal,
        };
        let replace = if flags.force { Replace::All } else { Replace::Own };
        Ok(Self { format: flags.format, file: flags.output.clone(), talk, replace })
    }

    /// The same, on standard output.
    pub fn to_stdout(&self) -> Self {
        Self { file: None, ..self.clone() }
    }

    /// Says a warning on standard error, unless quiet.
    pub fn warn(&self, message: &str) {
        if self.talk > Talk::Quiet {
            note(&format!("warning: {message}"));
        }
    }

    /// Says a detail on standard error, if details are wanted.
    pub fn detail(&self, message: &str) {
        if self.talk == Talk::Verbose {
            note(message);
        }
    }

    /// Whether progress may be shown: on a terminal, unless quiet.
    pub fn shows_progress(&self) -> bool {
        self.talk > Talk::Quiet && terminal::is_error_shown()
    }

    /// How tables look: colours and the terminal's width on a terminal, plain and as wide as they like elsewhere.
    pub fn look(&self) -> Look {
        if self.file.is_some() || !terminal::is_output_shown() {
            return Look::default();
        }
        Look { style: Style::Colour, width: terminal::width(), ..Look::default() }
    }

    /// Refuses a second file of the command that cannot be written, or that is the result's own.
    pub fn check_beside(&self, path: &Path) -> Result<(), Failure> {
        if self.file.as_deref() == Some(path) {
            return Err(Failure::input(format!("{} is named twice: expected two files", path.display())));
        }
        files::check(path)
    }

    /// Refuses to replace the result's file where it is not the command's own; for commands whose results are never the same bytes
    /// again, before their work.
    pub fn check_replaceable(&self) -> Result<(), Failure> {
        self.file.as_deref().map_or(Ok(()), |path| files::check_replaceable(path, self.replace))
    }

    /// Writes a finished result, with one newline at its end.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        self.write_with(text, None)
    }

    /// Writes a finished result and a file beside it, or neither.
    pub fn write_with(&self, text: &str, beside: Option<(&Path, &[u8])>) -> Result<(), Failure> {
        self.write_beside(text, beside.as_slice())
    }

    /// Writes a result and files beside it: all of them, or none.
    pub fn write_beside(&self, text: &str, beside: &[(&Path, &[u8])]) -> Result<(), Failure> {
        self.write_all(text, beside, Vec::new(), files::commit)
    }

    /// Writes a result, files beside it and files that wait for their places already: all of them, or none. `commit` moves them.
    pub fn write_all(
        &self,
        text: &str,
        beside: &[(&Path, &[u8])],
        mut staged: Vec<Staged>,
        commit: impl FnOnce(&[Staged]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let text = format!("{}\n", text.trim_end_matches('\n'));
        let coloured = self.format == Format::Text && self.look().style == Style::Colour;
        // A file may be shown by whatever shows files. JSON has escapes of its own, which readers turn back.
        let text = match text.trim_start().starts_with(['{', '[']) || self.format == Format::Json {
            true => visible_in_strings(&text),
            false if coloured => Cow::Borrowed(text.as_str()),
            false => visible_lines(&text),
        };
        let result = self.file.as_deref().map(|path| (path, text.as_bytes()));
        let files = result
            .into_iter()
            .chain(beside.iter().copied())
            .map(|(path, bytes)| Staged::new(path, bytes, self.replace));
        staged.extend(files.collect::<Result<Vec<_>, _>>()?);
        commit(&staged)?;
        if self.file.is_some() {
            return Ok(());
        }
        let colours = if coloured { Colours::Own } else { Colours::None };
        terminal::print(&text, colours)
            .map_err(|error| Failure::input(format!("cannot write to standard output: {error}")))
    }

    /// Writes a value as JSON.
    pub fn write_json(&self, value: &impl serde::Serialize) -> Result<(), Failure> {
        self.write(&json(value)?)
    }
}

/// A value as JSON for people and programs.
pub fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))?;
    Ok(visible_in_strings(&text).into_owned())
}
