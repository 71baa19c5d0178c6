//! Rows in columns, as every command prints them.

use std::io::{self, Write};

use crate::output::{BOLD, RESET};

/// Prints headings and rows, each column as wide as its widest cell.
pub(super) fn print(out: &mut impl Write, headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widths = cells.map(|cell| cell.chars().count());
        widths.chain([headings[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line: Vec<String> = cells.collect();
        line.join("  ").trim_end().to_owned()
    };
    writeln!(out, "{BOLD}{}{RESET}", line(&mut headings.iter().copied()))?;
    for row in rows {
        writeln!(out, "{}", line(&mut row.iter().map(String::as_str)))?;
    }
    out.flush()
}
