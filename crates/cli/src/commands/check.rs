//! `pulselet check`: admits manifests without running them. Writes nothing but its answer.

use std::io::Write;

use pulselet_model::Pod;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::CheckArgs;
use crate::diagnostics;
use crate::exit::{Exit, Failure};
use crate::input::{Gatekeeper, Outcome, Source, Verdict};
use crate::output::{self, Format, GREEN, RED, RESET};

/// Errors of one object that a person is shown.
const MAX_ERRORS_SHOWN: usize = 50;

pub(crate) fn run(args: &CheckArgs, verbose: u8) -> Result<Exit, Failure> {
    let (profile, gates) = (args.profile.into(), args.gates.feature_gates);
    if verbose > 0 {
        output::note(&format!("profile {profile}, feature gates {gates}"));
    }
    let mut out = output::stdout();
    let mut tally = Tally::default();
    for name in &args.files {
        // One unreadable file does not hide what the others are like.
        let checked = Source::read(name).and_then(|source| {
            source.judge(profile, Gatekeeper::Api(gates), |verdict| {
                tally.count(&verdict);
                output::written(match args.output.output {
                    Format::Json => print_json(&mut out, &source, &verdict),
                    Format::Text => print_text(&mut out, &source, &verdict),
                })
            })
        });
        if let Err(failure) = checked {
            output::written(out.flush())?;
            tally.worst = tally.worst.max(failure.report());
        }
    }
    if args.output.output == Format::Text && tally.total() > 0 {
        output::written(writeln!(out, "{}", tally.summary()))?;
    }
    output::written(out.flush())?;
    Ok(tally.worst)
}

struct Tally {
    accepted: usize,
    rejected: usize,
    warnings: usize,
    worst: Exit,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            accepted: 0,
            rejected: 0,
            warnings: 0,
            worst: Exit::Done,
        }
    }
}

impl Tally {
    fn count(&mut self, verdict: &Verdict) {
        match &verdict.outcome {
            Outcome::Accepted(admission, _) => {
                self.accepted += 1;
                self.warnings += admission.warnings.len();
            }
            Outcome::Object(_) => self.accepted += 1,
            Outcome::Invalid(_) | Outcome::Undecodable(_) => {
                self.rejected += 1;
                self.worst = self.worst.max(Exit::No);
            }
        }
    }

    const fn total(&self) -> usize {
        self.accepted + self.rejected
    }

    fn summary(&self) -> String {
        let plural =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let Self {
            accepted,
            rejected,
            warnings,
            ..
        } = self;
        let objects = plural(self.total(), "object");
        let mut summary = format!("{objects}: {accepted} accepted, {rejected} rejected");
        if *warnings > 0 {
            summary = format!("{summary}, {}", plural(*warnings, "warning"));
        }
        summary
    }
}

fn print_text(out: &mut dyn Write, source: &Source, verdict: &Verdict) -> std::io::Result<()> {
    let file = &source.name;
    let subject = match (verdict.kind.as_str(), verdict.name.as_str()) {
        ("", _) => format!("document {}", verdict.document),
        (kind, "") => format!("{kind} (document {})", verdict.document),
        (kind, name) => format!("{kind} {name}"),
    };
    match &verdict.outcome {
        Outcome::Accepted(admission, places) => {
            for (warning, at) in admission.warnings.iter().zip(places) {
                diagnostics::warning(out, source, warning, *at)?;
            }
            writeln!(out, "{file}: {subject}: {GREEN}accepted{RESET}")
        }
        Outcome::Object(_) => writeln!(out, "{file}: {subject}: {GREEN}accepted{RESET}"),
        Outcome::Invalid(errors) => {
            for (error, at) in errors.iter().take(MAX_ERRORS_SHOWN) {
                diagnostics::invalid(out, source, error, *at)?;
            }
            if let Some(more) = errors
                .len()
                .checked_sub(MAX_ERRORS_SHOWN)
                .filter(|more| *more > 0)
            {
                writeln!(out, "{file}: {more} more errors; -o json has them")?;
            }
            writeln!(out, "{file}: {subject}: {RED}rejected{RESET}")
        }
        Outcome::Undecodable(errors) => errors
            .iter()
            .try_for_each(|error| diagnostics::undecodable(out, source, error)),
    }
}

/// One line of `-o json`.
#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    document: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<usize>,
    kind: &'a str,
    name: &'a str,
    code: u16,
    causes: Vec<Value>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a Pod>,
}

fn print_json(out: &mut dyn Write, source: &Source, verdict: &Verdict) -> std::io::Result<()> {
    let (code, causes, warnings, pod) = match &verdict.outcome {
        Outcome::Accepted(admission, _) => {
            let warnings = admission.warnings.iter().map(ToString::to_string).collect();
            (201, Vec::new(), warnings, Some(&admission.pod))
        }
        Outcome::Object(_) => (201, Vec::new(), Vec::new(), None),
        Outcome::Invalid(errors) => {
            let causes = errors.iter().map(|(error, _)| json!(error)).collect();
            (422, causes, Vec::new(), None)
        }
        Outcome::Undecodable(errors) => {
            let field = &errors.first().field;
            let cause = json!({"field": field, "reason": "DecodeError", "message": errors.to_string()});
            (400, vec![cause], Vec::new(), None)
        }
    };
    let line = Line {
        file: &source.name,
        document: verdict.document,
        item: verdict.item,
        kind: &verdict.kind,
        name: &verdict.name,
        code,
        causes,
        warnings,
        pod,
    };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}
