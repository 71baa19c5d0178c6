//! The node's settings as a file: what `--config` names.
//!
//! Every key is optional, an unknown or repeated one is an error, and every error names its place. What comes out is
//! complete and in range. Reading the file, and letting flags win over it, is the caller's work.

mod duties;

use std::fmt;

use pulselet_engine::plan::{Settings, SubSecondPolicy};
use pulselet_engine::time::Span;
use pulselet_model::{GateSet, Position};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use crate::duration::{format_duration, parse_duration};
use crate::duties::NodeDuties;

use duties::Texts;
pub use duties::parse_cluster_domain;

/// Bytes of a configuration; all its keys with comments fit into a hundredth of it.
pub const MAX_CONFIG_BYTES: usize = 256 * 1024;
/// The shortest crash loop back-off: below it a broken container would keep the machine busy.
const MIN_BACKOFF: Span = Span::from_secs(1);

/// The node's own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConfig {
    pub gates: GateSet,
    pub settings: Settings,
    /// Whether pods may use the image of the machine's own files; `None` if the command decides.
    pub host_image: Option<bool>,
    /// Mirrors of registries, as they are written; who pulls images reads them.
    pub registry_mirrors: Vec<String>,
    pub duties: NodeDuties,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(*at))]
pub struct ConfigError {
    pub at: Option<Position>,
    /// What is wrong, without the place.
    pub message: String,
}

fn place(at: Option<Position>) -> String {
    at.map_or_else(String::new, |at| {
        format!("line {}, column {}: ", at.line, at.column)
    })
}

impl ConfigError {
    fn new(at: Option<Location>, message: impl fmt::Display) -> Self {
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let known = at.filter(|at| at.line() > 0);
        Self {
            at: known.map(|at| Position {
                line: narrow(at.line()),
                column: narrow(at.column()),
            }),
            message: message.to_string(),
        }
    }
}

impl From<&serde_saphyr::Error> for ConfigError {
    fn from(error: &serde_saphyr::Error) -> Self {
        let message = UserMessageFormatter.format_message(error.without_snippet());
        // The text may quote the file, which may hold anything.
        Self::new(error.location(), message.replace(char::is_control, " "))
    }
}

impl NodeConfig {
    /// Reads a YAML configuration; an empty one is the default.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.len() > MAX_CONFIG_BYTES {
            let message = format!(
                "the configuration has {} bytes, at most {MAX_CONFIG_BYTES} are read",
                text.len()
            );
            return Err(ConfigError { at: None, message });
        }
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let file: Option<File> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| ConfigError::from(&error))?;
        file.unwrap_or_default().resolve()
    }
}

/// The file as it is written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    feature_gates: GateMap,
    sub_second_policy: Option<SubSecondPolicy>,
    looks: Option<bool>,
    exec_error_is_failure: Option<bool>,
    overload_guard: Option<bool>,
    crash_loop_back_off: Option<BackOff>,
    probe_grace_period_seconds: Option<Spanned<i64>>,
    host_image: Option<bool>,
    registry_mirrors: Vec<String>,
    kube_reserved: Texts,
    system_reserved: Texts,
    max_pods: Option<Spanned<i64>>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<Spanned<String>>,
    cluster_domain: Option<Spanned<String>>,
    container_log_max_size: Option<Spanned<String>>,
    container_log_max_files: Option<Spanned<i64>>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<Spanned<i64>>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<Spanned<i64>>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Option<Spanned<String>>,
    eviction_hard: Option<Texts>,
    eviction_soft: Option<Texts>,
    eviction_soft_grace_period: Option<Texts>,
    eviction_max_pod_grace_period: Option<Spanned<i64>>,
    eviction_pressure_transition_period: Option<Spanned<String>>,
    shutdown_grace_period: Option<Spanned<String>>,
    shutdown_grace_period_critical_pods: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct BackOff {
    initial: Option<Spanned<String>>,
    max: Option<Spanned<String>>,
}

/// Gates by name, in the order of the file.
#[derive(Default)]
struct GateMap(Vec<(Spanned<String>, bool)>);

impl<'de> Deserialize<'de> for GateMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = GateMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping from feature gates to true or false")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<GateMap, A::Error> {
                let mut gates = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    gates.push(entry);
                }
                Ok(GateMap(gates))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl File {
    fn resolve(self) -> Result<NodeConfig, ConfigError> {
        let duties = self.duties()?;
        let mut gates = GateSet::default();
        for (name, on) in self.feature_gates.0 {
            let value = if on { "true" } else { "false" };
            gates = gates
                .apply_one(&name.value, value)
                .map_err(|error| ConfigError::new(Some(name.referenced), error))?;
        }
        let defaults = Settings::default();
        let host_image = self.host_image;
        let registry_mirrors = self.registry_mirrors;
        let (backoff_initial, backoff_max) =
            self.crash_loop_back_off.unwrap_or_default().resolve(&defaults)?;
        let settings = Settings {
            sub_second_policy: self.sub_second_policy.unwrap_or(defaults.sub_second_policy),
            looks: self.looks.unwrap_or(defaults.looks),
            exec_error_is_failure: self
                .exec_error_is_failure
                .unwrap_or(defaults.exec_error_is_failure),
            overload_guard: self.overload_guard.unwrap_or(defaults.overload_guard),
            backoff_initial,
            backoff_max,
            probe_grace: self
                .probe_grace_period_seconds
                .as_ref()
                .map(probe_grace)
                .transpose()?,
            pace: defaults.pace,
        };
        Ok(NodeConfig {
            gates,
            settings,
            host_image,
            registry_mirrors,
            duties,
        })
    }
}

fn probe_grace(seconds: &Spanned<i64>) -> Result<Span, ConfigError> {
    let whole = u64::try_from(seconds.value).map_err(|_| {
        let message = format!(
            "probeGracePeriodSeconds is {}, it cannot be negative",
            seconds.value
        );
        ConfigError::new(Some(seconds.referenced), message)
    })?;
    Ok(Span::from_secs(whole))
}

impl BackOff {
    /// A maximum below the default initial value lowers that too; an initial value that was written must fit.
    fn resolve(self, defaults: &Settings) -> Result<(Span, Span), ConfigError> {
        let max = match &self.max {
            Some(text) => backoff(text)?,
            None => defaults.backoff_max,
        };
        let Some(text) = &self.initial else {
            return Ok((defaults.backoff_initial.min(max), max));
        };
        let initial = backoff(text)?;
        if initial > max {
            let (initial, max) = (format_duration(initial), format_duration(max));
            let message =
                format!("crashLoopBackOff.initial is {initial}, longer than crashLoopBackOff.max ({max})");
            return Err(ConfigError::new(Some(text.referenced), message));
        }
        Ok((initial, max))
    }
}

fn backoff(text: &Spanned<String>) -> Result<Span, ConfigError> {
    let span = parse_duration(&text.value).map_err(|error| ConfigError::new(Some(text.referenced), error))?;
    if span < MIN_BACKOFF {
        let (span, least) = (format_duration(span), format_duration(MIN_BACKOFF));
        let message = format!("a crash loop back-off of {span} is too short, the least is {least}");
        return Err(ConfigError::new(Some(text.referenced), message));
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use pulselet_model::Gate;

    use super::*;

    fn error(text: &str) -> String {
        NodeConfig::parse(text).expect_err("an error").to_string()
    }

    #[test]
    fn an_empty_file_is_the_default() {
        for text in ["", "# nothing\n", "{}", "---\n"] {
            assert_eq!(NodeConfig::parse(text), Ok(NodeConfig::default()), "{text:?}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let text = "
featureGates: {SubSecondProbes: false, StartupProbe: false}
subSecondPolicy: alwaysWhenWaitingForSuccess
looks: false
execErrorIsFailure: true
overloadGuard: true
crashLoopBackOff: {initial: 1s, max: 1m30s}
probeGracePeriodSeconds: 15
hostImage: true
registryMirrors: [docker.io=https://mirror.example.com]
";
        let gates = GateSet::ALL
            .with(Gate::SubSecondProbes, false)
            .with(Gate::StartupProbeEnabled, false);
        let settings = Settings {
            sub_second_policy: SubSecondPolicy::AlwaysWhenWaitingForSuccess,
            looks: false,
            exec_error_is_failure: true,
            overload_guard: true,
            backoff_initial: Span::from_secs(1),
            backoff_max: Span::from_secs(90),
            probe_grace: Some(Span::from_secs(15)),
            pace: pulselet_engine::plan::ProbePace::Planned,
        };
        let host_image = Some(true);
        let expected = NodeConfig {
            gates,
            settings,
            host_image,
            registry_mirrors: vec!["docker.io=https://mirror.example.com".to_owned()],
            duties: NodeDuties::default(),
        };
        assert_eq!(NodeConfig::parse(text), Ok(expected));
    }

    #[test]
    fn a_low_maximum_lowers_the_initial_value() {
        let config = NodeConfig::parse("crashLoopBackOff: {max: 5s}").expect("a config");
        assert_eq!(config.settings.backoff_initial, Span::from_secs(5));
    }

    #[test]
    fn errors_name_their_place() {
        insta::assert_snapshot!(error("looks: true\nlook: false\n"), @"line 2, column 1: unknown field `look`, expected one of featureGates, subSecondPolicy, looks, execErrorIsFailure, overloadGuard, crashLoopBackOff, probeGracePeriodSeconds, hostImage, registryMirrors, kubeReserved, systemReserved, maxPods, clusterDNS, clusterDomain, containerLogMaxSize, containerLogMaxFiles, imageGCHighThresholdPercent, imageGCLowThresholdPercent, imageMinimumGCAge, evictionHard, evictionSoft, evictionSoftGracePeriod, evictionMaxPodGracePeriod, evictionPressureTransitionPeriod, shutdownGracePeriod, shutdownGracePeriodCriticalPods");
        insta::assert_snapshot!(error("looks: true\nlooks: false\n"), @"line 2, column 1: duplicate mapping key: looks not allowed here");
        insta::assert_snapshot!(error("looks: perhaps\n"), @"line 1, column 8: invalid boolean (true or false expected)");
        insta::assert_snapshot!(error("subSecondPolicy: sometimes\n"), @"line 1, column 18: unknown variant `sometimes`, expected one of onlyFirstTime, alwaysWhenWaitingForSuccess, always");
        insta::assert_snapshot!(error("featureGates:\n  SubSecondProbes: true\n  Nope: true\n"), @r#"line 3, column 3: unknown feature gate "Nope"; known gates: StartupProbeEnabled, ProbeTerminationGracePeriod, SubSecondProbes, ContainerStopSignals, ProbeInitializationFailureThreshold"#);
        insta::assert_snapshot!(error("crashLoopBackOff:\n  initial: 10\n"), @r#"line 2, column 12: duration "10" has no unit; use ms, s, m or h"#);
        insta::assert_snapshot!(error("crashLoopBackOff:\n  initial: 500ms\n"), @"line 2, column 12: a crash loop back-off of 500ms is too short, the least is 1s");
        insta::assert_snapshot!(error("crashLoopBackOff:\n  initial: 10m\n"), @"line 2, column 12: crashLoopBackOff.initial is 600s, longer than crashLoopBackOff.max (300s)");
        insta::assert_snapshot!(error("probeGracePeriodSeconds: -1\n"), @"line 1, column 26: probeGracePeriodSeconds is -1, it cannot be negative");
        insta::assert_snapshot!(error("looks: [\n"), @"line 1, column 8: expected string scalar");
        insta::assert_snapshot!(error("- looks\n"), @"line 1, column 1: expected mapping start");
        insta::assert_snapshot!(error("looks: true\n---\nlooks: false\n"), @"line 3, column 1: only single YAML document expected but multiple found");
    }

    #[test]
    fn a_huge_file_is_refused() {
        assert!(error(&"#".repeat(MAX_CONFIG_BYTES + 1)).contains("bytes"));
    }
}
