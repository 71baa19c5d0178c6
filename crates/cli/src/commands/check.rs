//! `pulselet check`: admits manifests without running them. Writes nothing but its answer.

use std::io::Write;

use pulselet_agent::LocalObject;
use pulselet_model::Pod;
use pulselet_model::openapi::api::core::v1::{ConfigMap, Secret};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::CheckArgs;
use crate::diagnostics;
use crate::exit::{Exit, Failure};
use crate::input::{Gatekeeper, Outcome, Source, Verdict};
use crate::output::{self, Format, GREEN, RED, RESET, YELLOW};

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
                tally.count(&verdict, args.strict);
                output::written(match args.output.output {
                    Format::Json => print_json(&mut out, &source, &verdict, args.strict),
                    Format::Text => print_text(&mut out, &source, &verdict, args.strict),
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
    skipped: usize,
    warnings: usize,
    worst: Exit,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            accepted: 0,
            rejected: 0,
            skipped: 0,
            warnings: 0,
            worst: Exit::Done,
        }
    }
}

impl Tally {
    fn count(&mut self, verdict: &Verdict, strict: bool) {
        match &verdict.outcome {
            outcome @ (Outcome::Accepted(..) | Outcome::Workload(..)) => {
                self.accepted += 1;
                self.warnings += outcome.warnings().count();
            }
            Outcome::Object(_) | Outcome::Companion(_) => self.accepted += 1,
            Outcome::Skipped(_) => {
                self.skipped += 1;
                if strict {
                    self.worst = self.worst.max(Exit::No);
                }
            }
            Outcome::Invalid(_) | Outcome::Undecodable(_) => {
                self.rejected += 1;
                self.worst = self.worst.max(Exit::No);
            }
        }
    }

    const fn total(&self) -> usize {
        self.accepted + self.rejected + self.skipped
    }

    fn summary(&self) -> String {
        let plural =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let Self {
            accepted,
            rejected,
            skipped,
            warnings,
            ..
        } = self;
        let objects = plural(self.total(), "object");
        let mut summary = format!("{objects}: {accepted} accepted, {rejected} rejected");
        if *skipped > 0 {
            summary = format!("{summary}, {skipped} skipped");
        }
        if *warnings > 0 {
            summary = format!("{summary}, {}", plural(*warnings, "warning"));
        }
        summary
    }
}

fn print_text(out: &mut dyn Write, source: &Source, verdict: &Verdict, strict: bool) -> std::io::Result<()> {
    let file = &source.name;
    let subject = match (verdict.kind.as_str(), verdict.name.as_str()) {
        ("", _) => format!("document {}", verdict.document),
        (kind, "") => format!("{kind} (document {})", verdict.document),
        (kind, name) => format!("{kind} {name}"),
    };
    match &verdict.outcome {
        outcome @ (Outcome::Accepted(..) | Outcome::Workload(..)) => {
            for (warning, at) in outcome.warnings() {
                diagnostics::warning(out, source, warning, at)?;
            }
            writeln!(out, "{file}: {subject}: {GREEN}accepted{RESET}")
        }
        Outcome::Object(_) | Outcome::Companion(_) => {
            writeln!(out, "{file}: {subject}: {GREEN}accepted{RESET}")
        }
        Outcome::Skipped(reason) if strict => {
            diagnostics::undecodable(out, source, reason)?;
            writeln!(out, "{file}: {subject}: {RED}skipped{RESET}")
        }
        Outcome::Skipped(reason) => {
            diagnostics::skipped(out, source, reason)?;
            writeln!(out, "{file}: {subject}: {YELLOW}skipped{RESET}")
        }
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
#[derive(Default, Serialize)]
struct Line<'a> {
    file: &'a str,
    document: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<usize>,
    kind: &'a str,
    name: &'a str,
    /// Zero for a kind that is skipped.
    code: u16,
    #[serde(skip_serializing_if = "is_false")]
    skipped: bool,
    causes: Vec<Value>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a Pod>,
    /// The object with its defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<AcceptedObject<'a>>,
}

/// An object as it is written to a line.
#[derive(Serialize)]
#[serde(untagged)]
enum AcceptedObject<'a> {
    Pod(&'a Pod),
    ConfigMap(&'a ConfigMap),
    Secret(&'a Secret),
    Other(&'a Value),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde wants")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

fn print_json(out: &mut dyn Write, source: &Source, verdict: &Verdict, strict: bool) -> std::io::Result<()> {
    let line = Line {
        file: &source.name,
        document: verdict.document,
        item: verdict.item,
        kind: &verdict.kind,
        name: &verdict.name,
        ..answer(&verdict.outcome, strict)
    };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}

/// The part of a line that is about the outcome.
fn answer(outcome: &Outcome, strict: bool) -> Line<'_> {
    let accepted = |object| Line {
        code: 201,
        warnings: outcome
            .warnings()
            .map(|(warning, _)| warning.to_string())
            .collect(),
        object: Some(object),
        ..Line::default()
    };
    match outcome {
        Outcome::Accepted(admission, _) => Line {
            pod: Some(&admission.pod),
            ..accepted(AcceptedObject::Pod(&admission.pod))
        },
        Outcome::Workload(workload, _) => accepted(AcceptedObject::Other(&workload.object)),
        Outcome::Object(LocalObject::ConfigMap(map)) => accepted(AcceptedObject::ConfigMap(map)),
        Outcome::Object(LocalObject::Secret(secret)) => accepted(AcceptedObject::Secret(secret)),
        Outcome::Companion(object) => accepted(AcceptedObject::Other(object)),
        Outcome::Skipped(reason) if strict => Line {
            skipped: true,
            causes: vec![json!({"field": "", "reason": "Skipped", "message": reason.to_string()})],
            ..Line::default()
        },
        Outcome::Skipped(reason) => Line {
            skipped: true,
            warnings: vec![reason.to_string()],
            ..Line::default()
        },
        Outcome::Invalid(errors) => Line {
            code: 422,
            causes: errors.iter().map(|(error, _)| json!(error)).collect(),
            ..Line::default()
        },
        Outcome::Undecodable(errors) => {
            let field = &errors.first().field;
            let cause = json!({"field": field, "reason": "DecodeError", "message": errors.to_string()});
            Line {
                code: 400,
                causes: vec![cause],
                ..Line::default()
            }
        }
    }
}
