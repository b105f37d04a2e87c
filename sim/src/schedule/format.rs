//! Formats of schedule files: detection, reading and writing.
//!
//! | format | content | read by |
//! |---|---|---|
//! | `json` | this project's own, lossless ([`json`]) | fabricast |
//! | `msccl-xml` | two-sided steps of thread blocks ([`msccl_xml`]) | MSCCL, RCCL |
//! | `mscclpp` | one-sided operations of thread blocks ([`mscclpp`]) | MSCCL++ |

pub use super::file_format::{CallSizes, Format, FormatError, WriteError, shortened};
use super::{Schedule, json, msccl_xml, mscclpp};

/// Reads a schedule in any of the formats. `source` names the text in errors.
///
/// # Errors
/// [`FormatError`] with line and column.
pub fn read(text: &str, source: &str) -> Result<Schedule, FormatError> {
    read_with_sizes(text, source).map(|(schedule, _)| schedule)
}

/// Reads a schedule in any of the formats, and returns it with the smallest and the largest call size for which the
/// file is valid. The largest is `u64::MAX` if the file sets no limit. A schedule in fabricast's own format is valid
/// for one size.
///
/// # Errors
/// [`FormatError`], as [`read()`].
pub fn read_with_sizes(text: &str, source: &str) -> Result<(Schedule, CallSizes), FormatError> {
    match Format::detect(text) {
        Format::Json => {
            let schedule = json::from_json(text, source)?;
            let bytes = schedule.header().call.bytes;
            Ok((schedule, CallSizes::only(bytes)))
        }
        Format::MscclXml => msccl_xml::from_xml_for(text, source),
        Format::Mscclpp => mscclpp::from_plan_for(text, source),
    }
}

/// Writes a schedule in a format.
///
/// # Errors
/// [`WriteError`] if the format cannot express the schedule.
pub fn write(schedule: &Schedule, format: Format) -> Result<String, WriteError> {
    match format {
        Format::Json => Ok(json::to_json(schedule)),
        Format::MscclXml => msccl_xml::to_xml(schedule),
        Format::Mscclpp => mscclpp::to_plan(schedule),
    }
}

/// Appends a schedule in a format to `text`, declared valid for the call sizes `sizes`. Callers that write many files
/// can reuse one buffer.
///
/// # Errors
/// [`WriteError`], as [`write()`]; the text is then unchanged.
pub fn write_for_sizes(
    schedule: &Schedule,
    format: Format,
    sizes: CallSizes,
    text: &mut String,
) -> Result<(), WriteError> {
    let start = text.len();
    let written = match format {
        Format::Json => {
            text.push_str(&json::to_json(schedule));
            Ok(())
        }
        Format::MscclXml => msccl_xml::write_xml(schedule, sizes, text),
        Format::Mscclpp => mscclpp::write_plan(schedule, sizes, text),
    };
    if written.is_err() {
        text.truncate(start);
    }
    written
}
