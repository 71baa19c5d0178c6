//! How errors and warnings about a manifest look to a person: place, field, what is wrong, the line, a hint.

use std::io::{self, Write};

use pulselet_model::{DecodeError, FieldError, Position, Warning};

use crate::input::{Outcome, Source, Verdict};
use crate::output::{CYAN, DIM, RED, RESET, YELLOW};

/// Longer lines are cut: a manifest in one line of JSON would fill the screen.
const MAX_LINE_CHARS: usize = 120;

/// Everything admission has to say about one object, on stderr.
pub(crate) fn complain(source: &Source, verdict: &Verdict) {
    let mut stderr = anstream::stderr().lock();
    // When stderr is gone there is nowhere left to complain to; the exit code still says it.
    let _ = match &verdict.outcome {
        outcome @ (Outcome::Accepted(..) | Outcome::Workload(..)) => outcome
            .warnings()
            .try_for_each(|(text, at)| warning(&mut stderr, source, text, at)),
        Outcome::Object(_) | Outcome::Companion(_) => Ok(()),
        Outcome::Skipped(reason) => skipped(&mut stderr, source, reason),
        Outcome::Invalid(errors) => errors
            .iter()
            .try_for_each(|(error, at)| invalid(&mut stderr, source, error, *at)),
        Outcome::Undecodable(errors) => errors
            .iter()
            .try_for_each(|error| undecodable(&mut stderr, source, error)),
    };
}

/// A kind that is not read. The message names it, so that its line adds nothing.
pub(crate) fn skipped(out: &mut dyn Write, source: &Source, reason: &DecodeError) -> io::Result<()> {
    place(out, &source.name, reason.at)?;
    writeln!(out, "{YELLOW}warning{RESET}: {}", reason.message)
}

pub(crate) fn invalid(
    out: &mut dyn Write,
    source: &Source,
    error: &FieldError,
    at: Option<Position>,
) -> io::Result<()> {
    let (field, message) = (&error.field, &error.message);
    place(out, &source.name, at)?;
    writeln!(out, "{RED}error{RESET}: {field}: {message}")?;
    snippet(out, source, at)
}

pub(crate) fn undecodable(out: &mut dyn Write, source: &Source, error: &DecodeError) -> io::Result<()> {
    place(out, &source.name, error.at)?;
    write!(out, "{RED}error{RESET}: ")?;
    if error.field.is_empty() && !error.fatal {
        // It is about the whole document: one line says it all.
        let hint = error
            .hint
            .as_ref()
            .map(|hint| format!("; {hint}"))
            .unwrap_or_default();
        return writeln!(out, "{}{hint}", error.message);
    }
    if !error.field.is_empty() {
        write!(out, "{}: ", error.field)?;
    }
    writeln!(out, "{}", error.message)?;
    snippet(out, source, error.at)?;
    match &error.hint {
        Some(hint) => writeln!(out, "  {CYAN}hint{RESET}: {hint}"),
        None => Ok(()),
    }
}

pub(crate) fn warning(
    out: &mut dyn Write,
    source: &Source,
    warning: &Warning,
    at: Option<Position>,
) -> io::Result<()> {
    place(out, &source.name, at)?;
    writeln!(out, "{YELLOW}warning{RESET}: {warning}")?;
    snippet(out, source, at)
}

fn place(out: &mut dyn Write, name: &str, at: Option<Position>) -> io::Result<()> {
    match at {
        Some(at) => write!(out, "{name}:{at}: "),
        None => write!(out, "{name}: "),
    }
}

/// The offending line with a mark under the place.
fn snippet(out: &mut dyn Write, source: &Source, at: Option<Position>) -> io::Result<()> {
    let Some((at, line)) = at.and_then(|at| source.line(at.line).map(|line| (at, line))) else {
        return Ok(());
    };
    let column = usize::try_from(at.column).unwrap_or(usize::MAX).saturating_sub(1);
    // Show a window of the line that has the place in it.
    let start = column.saturating_sub(MAX_LINE_CHARS * 2 / 3);
    let printable = |c: char| if c == '\t' || c.is_control() { ' ' } else { c };
    let shown: String = line
        .chars()
        .skip(start)
        .take(MAX_LINE_CHARS)
        .map(printable)
        .collect();
    let number = at.line.to_string();
    let mark = " ".repeat(column - start);
    writeln!(out, "  {DIM}{number} |{RESET} {}", shown.trim_end())?;
    writeln!(
        out,
        "  {DIM}{} |{RESET} {mark}{RED}^{RESET}",
        " ".repeat(number.len())
    )
}
