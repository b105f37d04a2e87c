//! Tables in CSV format.

use std::io::Write;

use fabricast_topologies::visible::visible;

use super::Table;

impl Table {
    /// Writes the keys of the columns and the exact values of all rows as CSV, including columns that text may hide.
    /// Control characters in texts become visible escapes.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn csv(&self, output: impl Write) -> Result<(), csv::Error> {
        let mut writer = csv::Writer::from_writer(output);
        writer.write_record(self.columns.iter().map(|column| &column.key))?;
        for row in &self.rows {
            writer.write_record(row.iter().map(|cell| visible(&cell.value.exact()).into_owned()))?;
        }
        Ok(writer.flush()?)
    }
}
