//! Metrics under the names a Kubernetes operator's dashboards know.
//!
//! The series of a probe live as long as its worker: whoever ends a worker calls [`Metrics::forget_probe`].

mod kubelet;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use pulselet_engine::io::{ProbeOutcome, ProbeReport};
use pulselet_engine::line::KillReason;
use pulselet_engine::plan::{ProbeKind, ProbePace};
use pulselet_model::{Gate, GateSet};
use pulselet_runtime::NetworkPart;
use pulselet_vocabulary::Signal;

use self::kubelet::KubeletMetrics;
pub(crate) use self::kubelet::RunningCounts;

/// Seconds; the usual buckets of a Prometheus histogram.
const PROBE_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

type HistogramMaker = fn() -> Histogram;

/// Which worker a series belongs to.
#[derive(Clone, Debug)]
pub(crate) struct ProbeName {
    pub(crate) kind: ProbeKind,
    pub(crate) container: Arc<str>,
    pub(crate) pod: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) uid: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    probe_type: &'static str,
    result: &'static str,
    container: Arc<str>,
    pod: Arc<str>,
    namespace: Arc<str>,
    pod_uid: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    probe_type: &'static str,
    container: Arc<str>,
    pod: Arc<str>,
    namespace: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalLabels {
    signal: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StopLabels {
    reason: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabels {
    part: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabels {
    name: &'static str,
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FeatureLabels {
    name: &'static str,
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOutcome {
    Graceful,
    Killed,
    /// Nobody saw the end.
    Error,
}

/// All metrics of a node.
pub(crate) struct Metrics {
    probes: Registry,
    others: Registry,
    pub(crate) kubelet: KubeletMetrics,
    probe_total: Family<ProbeLabels, Counter>,
    probe_duration: Family<DurationLabels, Histogram, HistogramMaker>,
    looks: Family<LookLabels, Counter>,
    stop_signals: Family<SignalLabels, Gauge>,
    in_use: Family<FeatureLabels, Gauge>,
    grace_exceeded: Counter,
    network_repairs: Family<PartLabels, Counter>,
    lateness: Histogram,
    stretched: Gauge,
    first_success: Histogram,
    stop_duration: Family<StopLabels, Histogram, HistogramMaker>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The count of lines that the process could not log.
#[derive(Debug)]
struct DroppedLogLines(Arc<AtomicU64>);

impl Collector for DroppedLogLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metric = encoder.encode_descriptor(
            "pulselet_log_lines_dropped",
            "Lines of the log that were lost because its reader was too slow or writing failed",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(self.0.load(Ordering::Relaxed)).encode(metric)
    }
}

/// The results that have a series of their own.
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl Metrics {
    pub(crate) fn new(gates: GateSet) -> Self {
        let metrics = Self {
            probes: Registry::default(),
            others: Registry::default(),
            kubelet: KubeletMetrics::default(),
            probe_total: Family::default(),
            probe_duration: Family::new_with_constructor(|| Histogram::new(PROBE_BUCKETS)),
            looks: Family::default(),
            stop_signals: Family::default(),
            in_use: Family::default(),
            grace_exceeded: Counter::default(),
            network_repairs: Family::default(),
            lateness: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            stretched: Gauge::default(),
            first_success: Histogram::new(exponential_buckets(0.025, 2.0, 16)),
            stop_duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.01, 2.0, 18))
            }),
        };
        metrics.register(gates)
    }

    fn register(mut self, gates: GateSet) -> Self {
        let probes = &mut self.probes;
        let total = self.probe_total.clone();
        probes.register(
            "prober_probe",
            "Cumulative number of a liveness, readiness or startup probe for a container by result",
            total,
        );
        let duration = self.probe_duration.clone();
        probes.register(
            "prober_probe_duration_seconds",
            "Duration in seconds of a probe",
            duration,
        );
        let others = &mut self.others;
        self.kubelet.register(others);
        let enabled: Family<GateLabels, Gauge> = Family::default();
        for gate in Gate::ALL {
            let name = gate.name();
            let stage = gate.stage();
            let labels = GateLabels { name, stage };
            enabled.get_or_create(&labels).set(i64::from(gates.enabled(gate)));
            // Every gate has its series from the start: none in use is something to know.
            self.in_use.get_or_create(&FeatureLabels { name }).set(0);
        }
        others.register(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on",
            enabled,
        );
        others.register(
            "pulselet_feature_in_use",
            "Pods of this node whose manifest has fields of a feature gate",
            self.in_use.clone(),
        );
        others.register(
            "kubelet_pod_stop_signals_count",
            "Pods that ask for a stop signal, each once per distinct signal",
            self.stop_signals.clone(),
        );
        others.register(
            "kubelet_pod_termination_grace_period_exceeded",
            "Pods whose end needed SIGKILL because the grace period was over",
            self.grace_exceeded.clone(),
        );
        for part in NetworkPart::ALL {
            let labels = PartLabels { part: part.name() };
            self.network_repairs.get_or_create(&labels).inc_by(0);
        }
        others.register(
            "pulselet_network_repairs",
            "Parts of the pods' network that were restored after another program had changed them",
            self.network_repairs.clone(),
        );
        others.register(
            "pulselet_probe_lateness_seconds",
            "Between the moment a probe was due and the moment it began",
            self.lateness.clone(),
        );
        others.register(
            "pulselet_probes_stretched",
            "1 while probes with a period below one second are made every periodSeconds because the node is late, else 0",
            self.stretched.clone(),
        );
        others.register(
            "pulselet_probe_looks",
            "Attempts of startup and readiness probes before their first counted tick, by result",
            self.looks.clone(),
        );
        others.register(
            "pulselet_container_time_to_first_success_seconds",
            "Between a container's start and the first success of one of its probes",
            self.first_success.clone(),
        );
        others.register(
            "pulselet_container_stop_duration_seconds",
            "Between the decision to stop a container and its exit",
            self.stop_duration.clone(),
        );
        self
    }

    /// Counts a probe. An error of the handler says nothing and is not counted.
    pub(crate) fn probe(&self, name: &ProbeName, outcome: ProbeOutcome, latency: Duration) {
        let result = match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning => "successful",
            ProbeOutcome::Failure => "failed",
            ProbeOutcome::Unknown => "unknown",
            ProbeOutcome::Error => return,
        };
        self.probe_total.get_or_create(&name.total(result)).inc();
        self.probe_duration
            .get_or_create(&name.duration())
            .observe(latency.as_secs_f64());
    }

    /// Counts a look, whatever came of it. Nobody was there for one that was refused.
    pub(crate) fn look(&self, report: &ProbeReport) {
        let result = match report.outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning => "success",
            ProbeOutcome::Failure | ProbeOutcome::Unknown if !report.reached => "refused",
            ProbeOutcome::Failure | ProbeOutcome::Unknown if report.timed_out => "timeout",
            ProbeOutcome::Failure | ProbeOutcome::Unknown => "failure",
            ProbeOutcome::Error => return,
        };
        self.looks.get_or_create(&LookLabels { result }).inc();
    }

    /// The worker has finished: its series end.
    pub(crate) fn forget_probe(&self, name: &ProbeName) {
        for result in RESULTS {
            self.probe_total.remove(&name.total(result));
        }
        self.probe_duration.remove(&name.duration());
    }

    pub(crate) fn lateness(&self, late: Duration) {
        self.lateness.observe(late.as_secs_f64());
    }

    pub(crate) fn network_restored(&self, part: NetworkPart) {
        let labels = PartLabels { part: part.name() };
        self.network_repairs.get_or_create(&labels).inc();
    }

    pub(crate) fn pace(&self, pace: ProbePace) {
        self.stretched.set(i64::from(pace == ProbePace::Stretched));
    }

    pub(crate) fn first_success(&self, after: Duration) {
        self.first_success.observe(after.as_secs_f64());
    }

    pub(crate) fn stopped(&self, reason: KillReason, outcome: StopOutcome, took: Duration) {
        let labels = StopLabels {
            reason: reason_label(reason),
            outcome: match outcome {
                StopOutcome::Graceful => "graceful",
                StopOutcome::Killed => "killed",
                StopOutcome::Error => "error",
            },
        };
        self.stop_duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn grace_exceeded(&self) {
        self.grace_exceeded.inc();
    }

    /// A pod has fields of these gates.
    pub(crate) fn features_used(&self, gates: GateSet) {
        self.count_features(gates, 1);
    }

    /// A pod that had fields of these gates is gone, or has them no longer.
    pub(crate) fn features_gone(&self, gates: GateSet) {
        self.count_features(gates, -1);
    }

    fn count_features(&self, gates: GateSet, by: i64) {
        for gate in Gate::ALL.into_iter().filter(|gate| gates.enabled(*gate)) {
            let labels = FeatureLabels { name: gate.name() };
            self.in_use.get_or_create(&labels).inc_by(by);
        }
    }

    /// A pod asks for this signal.
    pub(crate) fn signal_asked(&self, signal: Signal) {
        let labels = SignalLabels {
            signal: signal.name(),
        };
        self.stop_signals.get_or_create(&labels).inc();
    }

    /// A pod that asked for this signal is gone.
    pub(crate) fn signal_gone(&self, signal: Signal) {
        let labels = SignalLabels {
            signal: signal.name(),
        };
        if self.stop_signals.get_or_create(&labels).dec() <= 1 {
            self.stop_signals.remove(&labels);
        }
    }

    /// Shows a count of log lines that were lost.
    pub(crate) fn with_dropped_log_lines(mut self, count: Arc<AtomicU64>) -> Self {
        self.others.register_collector(Box::new(DroppedLogLines(count)));
        self
    }

    /// The text of `/metrics`.
    pub(crate) fn all(&self) -> String {
        let mut out = String::new();
        text::encode_registry(&mut out, &self.probes)
            .and_then(|()| text::encode(&mut out, &self.others))
            .expect("writing to a string does not fail");
        out
    }

    /// The text of `/metrics/probes`.
    pub(crate) fn probes(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.probes).expect("writing to a string does not fail");
        out
    }
}

impl ProbeName {
    fn total(&self, result: &'static str) -> ProbeLabels {
        ProbeLabels {
            probe_type: self.kind.title(),
            result,
            container: Arc::clone(&self.container),
            pod: Arc::clone(&self.pod),
            namespace: Arc::clone(&self.namespace),
            pod_uid: Arc::clone(&self.uid),
        }
    }

    fn duration(&self) -> DurationLabels {
        DurationLabels {
            probe_type: self.kind.title(),
            container: Arc::clone(&self.container),
            pod: Arc::clone(&self.pod),
            namespace: Arc::clone(&self.namespace),
        }
    }
}

const fn reason_label(reason: KillReason) -> &'static str {
    match reason {
        KillReason::StartupProbe => "startupProbe",
        KillReason::LivenessProbe => "livenessProbe",
        KillReason::Deleted => "deleted",
        KillReason::Stopped => "stopped",
        KillReason::Evicted => "evicted",
        KillReason::NodeShutdown => "nodeShutdown",
        KillReason::Deadline => "deadline",
        KillReason::SandboxChanged => "sandboxChanged",
        KillReason::ImageChanged => "imageChanged",
        KillReason::Restarted => "restarted",
        KillReason::AllContainersRestarting => "allContainersRestarting",
        KillReason::PostStartHook => "postStartHook",
        KillReason::Completed => "completed",
    }
}

#[cfg(test)]
mod tests {
    use pulselet_engine::Span;

    use super::*;

    fn name() -> ProbeName {
        ProbeName {
            kind: ProbeKind::Liveness,
            container: "app".into(),
            pod: "web".into(),
            namespace: "default".into(),
            uid: "u-1".into(),
        }
    }

    #[test]
    fn names_and_labels_are_upstreams() {
        let metrics = Metrics::new(GateSet::ALL.with(Gate::SubSecondProbes, false))
            .with_dropped_log_lines(Arc::new(AtomicU64::new(7)));
        metrics.probe(&name(), ProbeOutcome::Failure, Duration::from_millis(7));
        metrics.probe(&name(), ProbeOutcome::Error, Duration::from_millis(7));
        for (outcome, reached, timed_out) in [
            (ProbeOutcome::Success, true, false),
            (ProbeOutcome::Failure, false, true),
            (ProbeOutcome::Failure, true, true),
            (ProbeOutcome::Failure, true, false),
            (ProbeOutcome::Error, false, false),
        ] {
            metrics.look(&ProbeReport {
                outcome,
                detail: String::new(),
                exit_code: None,
                latency: Span::ZERO,
                reached,
                timed_out,
                starved: false,
            });
        }
        metrics.grace_exceeded();
        metrics.network_restored(NetworkPart::Firewall);
        metrics.features_used(GateSet::NONE.with(Gate::SubSecondProbes, true));
        metrics.signal_asked("SIGUSR1".parse().unwrap());
        metrics.stopped(
            KillReason::LivenessProbe,
            StopOutcome::Killed,
            Duration::from_secs(1),
        );
        let text = metrics.all();
        let expected = [
            r#"prober_probe_total{probe_type="Liveness",result="failed",container="app",pod="web",namespace="default",pod_uid="u-1"} 1"#,
            r#"prober_probe_duration_seconds_count{probe_type="Liveness",container="app",pod="web",namespace="default"} 1"#,
            "pulselet_log_lines_dropped_total 7",
            r#"kubernetes_feature_enabled{name="SubSecondProbes",stage="ALPHA"} 0"#,
            r#"kubernetes_feature_enabled{name="StartupProbeEnabled",stage=""} 1"#,
            r#"pulselet_feature_in_use{name="SubSecondProbes"} 1"#,
            r#"pulselet_feature_in_use{name="ContainerStopSignals"} 0"#,
            r#"kubelet_pod_stop_signals_count{signal="SIGUSR1"} 1"#,
            "kubelet_pod_termination_grace_period_exceeded_total 1",
            r#"pulselet_container_stop_duration_seconds_count{reason="livenessProbe",outcome="killed"} 1"#,
            "pulselet_probe_lateness_seconds_count 0",
            "pulselet_probes_stretched 0",
            r#"pulselet_network_repairs_total{part="firewall"} 1"#,
            r#"pulselet_network_repairs_total{part="bridge"} 0"#,
            r#"pulselet_probe_looks_total{result="success"} 1"#,
            r#"pulselet_probe_looks_total{result="refused"} 1"#,
            r#"pulselet_probe_looks_total{result="timeout"} 1"#,
            r#"pulselet_probe_looks_total{result="failure"} 1"#,
            "pulselet_container_time_to_first_success_seconds_count 0",
        ];
        for line in expected {
            assert!(text.lines().any(|found| found == line), "{line}\nnot in\n{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1);
        assert!(!metrics.probes().contains("kubelet_"));
    }

    /// What the files for Prometheus and Grafana ask for is there to be asked for, and what they refer to is defined.
    #[test]
    fn the_rules_and_the_dashboard_know_the_nodes_metrics() {
        let metrics = Metrics::new(GateSet::ALL);
        metrics.probe(&name(), ProbeOutcome::Failure, Duration::ZERO);
        metrics.signal_asked(Signal::TERM);
        metrics.stopped(KillReason::LivenessProbe, StopOutcome::Killed, Duration::ZERO);
        let text = metrics.all();
        let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dist/");
        let read = |file: &str| std::fs::read_to_string(format!("{dist}{file}")).expect("the file is there");
        let rules = read("prometheus-rules.yaml");
        for (file, used) in [
            ("prometheus-rules.yaml", &rules),
            ("grafana-dashboard.json", &read("grafana-dashboard.json")),
        ] {
            let words = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
            let prefixes = ["prober_", "kubelet_", "kubernetes_", "pulselet_"];
            let (mut exported, mut recorded) = (0, 0);
            for word in words.map(|word| word.trim_end_matches(':')) {
                if word.starts_with("pulselet:") {
                    assert!(
                        rules.contains(&format!("- record: {word}\n")),
                        "{file} uses {word}, which no rule records"
                    );
                    recorded += 1;
                } else if prefixes.iter().any(|prefix| word.starts_with(prefix)) {
                    let is_there = |line: &str| line.split(['{', ' ']).next() == Some(word);
                    assert!(
                        text.lines().any(is_there),
                        "{file} uses {word}, which is not exported"
                    );
                    exported += 1;
                }
            }
            assert!(exported > 5 && (recorded > 3 || file.ends_with("json")), "{file}");
        }
    }

    #[test]
    fn series_end_with_what_they_are_about() {
        let metrics = Metrics::new(GateSet::ALL);
        metrics.probe(&name(), ProbeOutcome::Success, Duration::ZERO);
        metrics.forget_probe(&name());
        let signal = "SIGINT".parse().unwrap();
        metrics.signal_asked(signal);
        metrics.signal_asked(signal);
        metrics.signal_gone(signal);
        assert!(metrics.all().contains(r#"{signal="SIGINT"} 1"#));
        metrics.signal_gone(signal);
        let text = metrics.all();
        assert!(!text.contains("u-1") && !text.contains("SIGINT"));
    }
}
