//! Spans: whose work a line of the log is about.
//!
//! A log event inside of one does not name its subject again. The fields have the same names everywhere: `pod` is
//! `namespace/name`, `container` the container's name, `id` one instance of it in the runtime.
//!
//! The spans of pods and containers have the level of errors: a filter that lets any event through shows its subject,
//! too. They are made for work that happens a few times in a life. A probe happens many times a second on a large node,
//! so its span exists only where someone looks at debug messages.

use pulselet_engine::plan::ProbeKind;
use pulselet_runtime::ContainerId;
use pulselet_vocabulary::PodName;
use tracing::Span;

/// Work for a pod as a whole.
pub fn pod(pod: &PodName) -> Span {
    tracing::error_span!("pod", %pod)
}

/// Work for one container; without an instance where none has been made yet.
pub fn container(pod: &PodName, container: &str, id: Option<&ContainerId>) -> Span {
    tracing::error_span!("container", %pod, container, id = id.map(display))
}

/// One run of a probe.
pub(crate) fn probe(pod: &PodName, container: &str, id: &ContainerId, kind: ProbeKind) -> Span {
    tracing::debug_span!("probe", %pod, container, %id, kind = kind.as_str())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::Level;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is logged at a level by one event inside of each span.
    fn logged(level: Level) -> String {
        let log = Log::default();
        let own = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(move || own.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let name = PodName::new("shop", "web");
            let id = ContainerId::new("c1".to_owned());
            let event = || tracing::error!("it failed");
            pod(&name).in_scope(event);
            container(&name, "app", Some(&id)).in_scope(event);
            container(&name, "app", None).in_scope(event);
            probe(&name, "app", &id, ProbeKind::Liveness).in_scope(event);
        });
        let bytes = log.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_filter_shows_whose_work_it_is_and_only_a_fine_one_makes_spans_of_probes() {
        let subjects = [
            "ERROR pod{pod=shop/web}: it failed",
            r#"ERROR container{pod=shop/web container="app" id=c1}: it failed"#,
            r#"ERROR container{pod=shop/web container="app"}: it failed"#,
        ];
        let probed = r#"ERROR probe{pod=shop/web container="app" id=c1 kind="liveness"}: it failed"#;
        for (level, last) in [(Level::ERROR, "ERROR it failed"), (Level::DEBUG, probed)] {
            let lines = logged(level);
            let lines: Vec<&str> = lines.lines().map(str::trim_start).collect();
            assert_eq!(lines, [&subjects[..], &[last]].concat());
        }
    }
}
