//! Event lines as text, for terminals and for files. The words are the simulator's.

use std::collections::HashMap;
use std::sync::Arc;

use pulselet_agent::PodLine;
use pulselet_engine::line::LineBody;
use pulselet_engine::plan::ProbeKind;
use pulselet_sim::timeline::ProbeResult;
use pulselet_sim::timeline::wording::{clock, describe, style};
use pulselet_vocabulary::PodName;

use super::state::Pods;

/// Turns lines into text. Equal results of a probe in a row are printed once, unless all are wanted.
#[derive(Debug)]
pub(crate) struct TextFormatter {
    /// The width of the widest subject.
    width: usize,
    /// Several pods: each line names its own.
    several: bool,
    every_probe: bool,
    /// The last result printed of each probe: at most three per container.
    printed: HashMap<(Arc<str>, Arc<str>, ProbeKind), ProbeResult>,
}

impl TextFormatter {
    pub(crate) fn new(pods: &Pods, every_probe: bool) -> Self {
        let several = pods.iter().count() > 1;
        let names = pods.iter().flat_map(|pod| {
            let containers = pod
                .containers
                .iter()
                .map(|container| Some(container.name.as_ref()));
            containers
                .chain([None])
                .map(move |name| subject(several, &pod.name, name))
        });
        Self {
            width: names.map(|name| name.chars().count()).max().unwrap_or_default(),
            several,
            every_probe,
            printed: HashMap::new(),
        }
    }

    /// The line as text without a newline; none where it repeats what was printed.
    pub(crate) fn format(&mut self, line: &PodLine) -> Option<String> {
        if !self.is_new(line) {
            return None;
        }
        let body = &line.line.body;
        let subject = subject(self.several, &line.pod, line.line.container.as_deref());
        let width = self.width;
        Some(format!(
            "{}  {subject:width$}  {}{}{}",
            clock(line.t),
            style::of(body),
            printable(&describe(body)),
            style::RESET
        ))
    }

    fn is_new(&mut self, line: &PodLine) -> bool {
        let Some(container) = &line.line.container else {
            return true;
        };
        match &line.line.body {
            LineBody::Probe {
                kind,
                outcome,
                counted,
                ..
            } => {
                let result = ProbeResult::of(*outcome, *counted);
                let key = (Arc::clone(&line.uid), Arc::clone(container), *kind);
                let repeated = self.printed.insert(key, result) == Some(result);
                // Each failure that counts brings the container closer to its end.
                self.every_probe || !repeated || result == ProbeResult::Failure
            }
            LineBody::Running { .. } => {
                // The first result of a new life is printed again.
                self.printed
                    .retain(|(uid, name, _), _| *uid != line.uid || name != container);
                true
            }
            LineBody::Created { .. }
            | LineBody::Started
            | LineBody::Ready
            | LineBody::Unready
            | LineBody::Killing { .. }
            | LineBody::Hook { .. }
            | LineBody::Signal { .. }
            | LineBody::GraceExceeded { .. }
            | LineBody::Exited { .. }
            | LineBody::Backoff { .. }
            | LineBody::RestartAllContainers { .. }
            | LineBody::Phase { .. }
            | LineBody::Deleted
            | LineBody::AgentRestarted
            | LineBody::Warning { .. } => true,
        }
    }
}

/// How a container or a pod is called in front of its lines.
pub(super) fn subject(several: bool, pod: &PodName, container: Option<&str>) -> String {
    match (several, container) {
        (false, None) => "pod".to_owned(),
        (false, Some(container)) => container.to_owned(),
        (true, None) => pod.to_string(),
        (true, Some(container)) => format!("{pod}/{container}"),
    }
}

/// What containers say may hold control characters; a terminal must not obey them.
pub(crate) fn printable(text: &str) -> String {
    text.trim_end()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{line, pods, probe};
    use super::*;
    use pulselet_engine::line::LineOutcome;

    fn printed(every_probe: bool, bodies: impl IntoIterator<Item = LineBody>) -> Vec<String> {
        let pods = pods();
        let mut formatter = TextFormatter::new(&pods, every_probe);
        let lines = bodies
            .into_iter()
            .filter_map(|body| formatter.format(&line(&pods, 61, true, body)));
        lines
            .map(|text| anstream::adapter::strip_str(&text).to_string())
            .collect()
    }

    #[test]
    fn equal_successes_are_printed_once_and_failures_each_time() {
        let success = || probe(ProbeKind::Readiness, LineOutcome::Success, 1);
        let failure = |run| probe(ProbeKind::Readiness, LineOutcome::Failure, run);
        let attempts = || [success(), success(), failure(1), failure(2), success()];
        assert_eq!(
            printed(false, attempts()),
            [
                "  0:01:01.000  app  probe readiness ok",
                "  0:01:01.000  app  probe readiness failed (1 in a row): connection refused",
                "  0:01:01.000  app  probe readiness failed (2 in a row): connection refused",
                "  0:01:01.000  app  probe readiness ok",
            ]
        );
        assert_eq!(printed(true, attempts()).len(), 5);
    }

    #[test]
    fn a_new_life_prints_its_first_success_again() {
        let success = || probe(ProbeKind::Readiness, LineOutcome::Success, 1);
        let running = LineBody::Running {
            id: "c".into(),
            restart_count: 1,
        };
        assert_eq!(printed(false, [success(), running, success()]).len(), 3);
    }

    #[test]
    fn containers_cannot_speak_to_the_terminal() {
        let message = "a\x1b[2Jb\nc".to_owned();
        let text = &printed(false, [LineBody::Warning { message }])[0];
        assert!(text.ends_with("warning: a [2Jb c"), "{text:?}");
    }
}
