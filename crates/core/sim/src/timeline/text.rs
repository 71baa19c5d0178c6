//! The story for reading: a line for each thing that matters, long runs of equal probes folded into one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use pulselet_engine::line::{Line, LineBody};
use pulselet_engine::plan::ProbeKind;
use pulselet_engine::time::Time;

use super::ProbeResult;
use super::wording::{clock, describe, describe_probe, style};

/// Writes lines as they come. What is still folded is written by [`TextTimeline::finish`].
#[derive(Debug)]
pub struct TextTimeline<W> {
    out: W,
    /// The width of the widest container name.
    width: usize,
    folds: BTreeMap<(Arc<str>, ProbeKind), Fold>,
}

#[derive(Debug)]
struct Fold {
    result: ProbeResult,
    detail: String,
    run: u32,
    from: Time,
    until: Time,
    count: u64,
}

impl<W: Write> TextTimeline<W> {
    pub fn new<'a>(out: W, containers: impl IntoIterator<Item = &'a str>) -> Self {
        let width = containers
            .into_iter()
            .map(|name| name.chars().count())
            .chain([3])
            .max()
            .unwrap_or(3);
        Self {
            out,
            width,
            folds: BTreeMap::new(),
        }
    }

    pub fn push(&mut self, line: &Line) -> io::Result<()> {
        let (
            Some(container),
            LineBody::Probe {
                kind,
                outcome,
                detail,
                run,
                counted,
                ..
            },
        ) = (&line.container, &line.body)
        else {
            self.unfold()?;
            let subject = line.container.as_deref().unwrap_or("pod");
            return self.write(line.at, subject, style::of(&line.body), &describe(&line.body));
        };
        let result = ProbeResult::of(*outcome, *counted);
        let key = (Arc::clone(container), *kind);
        match self.folds.get_mut(&key) {
            Some(fold) if fold.result == result && fold.detail == *detail => {
                fold.until = line.at;
                fold.count += 1;
                fold.run = *run;
                return Ok(());
            }
            Some(_) => self.unfold()?,
            None => {}
        }
        let (from, until) = (line.at, line.at);
        self.folds.insert(
            key,
            Fold {
                result,
                detail: detail.clone(),
                run: *run,
                from,
                until,
                count: 1,
            },
        );
        Ok(())
    }

    /// Writes what is still folded.
    pub fn finish(mut self) -> io::Result<W> {
        self.unfold()?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn unfold(&mut self) -> io::Result<()> {
        let mut folds: Vec<_> = std::mem::take(&mut self.folds).into_iter().collect();
        folds.sort_by_key(|((_, kind), fold)| (fold.from, *kind));
        for ((container, kind), fold) in folds {
            let style = style::of_probe(fold.result);
            self.write(fold.from, &container, style, &fold.describe(kind))?;
        }
        Ok(())
    }

    fn write(&mut self, at: Time, subject: &str, style: &str, text: &str) -> io::Result<()> {
        let width = self.width;
        writeln!(
            self.out,
            "{}  {subject:width$}  {style}{text}{}",
            clock(at.since(Time::ZERO)),
            style::RESET
        )
    }
}

impl Fold {
    fn describe(&self, kind: ProbeKind) -> String {
        let mut text = describe_probe(kind, self.result, self.count, self.run, &self.detail);
        if self.count > 1 {
            // Writing to a String does not fail.
            let _ = write!(
                text,
                ", until {}",
                clock(self.until.since(Time::ZERO)).trim_start()
            );
        }
        text
    }
}
