//! Reading a scenario file. Every error names the line and the column it is about.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pulselet_engine::plan::{PodPlan, ProbeKind};
use pulselet_engine::time::{Span, Time};
use pulselet_model::{Gate, GateError};
use pulselet_vocabulary::Signal;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_saphyr::{Location, MessageFormatter, Spanned, UserMessageFormatter};

use crate::scenario::{
    Ending, GateFlip, Hooks, Load, OwnExit, ProbeScript, Scenario, ScriptedHealth, ScriptedLife, Window,
};
use pulselet_plan::duration::{DurationError, parse_duration};

/// Bytes of a scenario file. A thousand lives need less than a tenth of it.
pub(super) const MAX_SCENARIO_BYTES: usize = 1024 * 1024;

/// Where in the file, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub line: u64,
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

impl From<Location> for Place {
    fn from(location: Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    #[error("the scenario is larger than {MAX_SCENARIO_BYTES} bytes")]
    TooLarge,
    #[error("{at}: {message}")]
    ParseYaml { at: Place, message: String },
    #[error("{at}: {source}")]
    ParseDuration { at: Place, source: DurationError },
    #[error("{at}: the pod has no container {name:?}; it has {known}")]
    UnknownContainer { at: Place, name: String, known: String },
    #[error("{at}: unknown probe kind {kind:?}; use startup, liveness or readiness")]
    UnknownProbeKind { at: Place, kind: String },
    #[error("{at}: {source}")]
    UnknownGate { at: Place, source: GateError },
    #[error("{at}: {signal:?} is not a signal a process can handle")]
    UnknownSignal { at: Place, signal: String },
    #[error("{at}: {message}")]
    Contradiction { at: Place, message: String },
}

impl Scenario {
    /// Reads a scenario for the pod of this plan.
    pub fn read(text: &str, plan: &PodPlan) -> Result<Self, ScenarioError> {
        if text.len() > MAX_SCENARIO_BYTES {
            return Err(ScenarioError::TooLarge);
        }
        let file: File = match serde_saphyr::from_str::<Option<File>>(text) {
            Ok(file) => file.unwrap_or_default(),
            Err(error) => return Err(yaml_error(&error)),
        };
        file.resolve(plan)
    }
}

fn yaml_error(error: &serde_saphyr::Error) -> ScenarioError {
    let at = error.location().map_or(Place { line: 1, column: 1 }, Place::from);
    let message = UserMessageFormatter.format_message(error.without_snippet());
    // The text may quote the file, which may hold anything.
    let message = message.replace(char::is_control, " ");
    ScenarioError::ParseYaml { at, message }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    containers: Option<Entries<Option<ContainerFile>>>,
    agent: Option<AgentFile>,
    gates: Option<Vec<FlipFile>>,
    delete_at: Option<Text>,
    grace_period_seconds: Option<Spanned<i64>>,
    evict_at: Option<Text>,
    eviction_grace_period_seconds: Option<Spanned<i64>>,
    shutdown_at: Option<Text>,
    load: Option<Vec<LoadFile>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ContainerFile {
    lives: Option<Spanned<Vec<LifeFile>>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LifeFile {
    starts_after: Option<Text>,
    listens_after: Option<Text>,
    fails_at: Option<Text>,
    recovers_at: Option<Text>,
    exits_at: Option<Text>,
    exit_code: Option<Spanned<i64>>,
    stops_in: Option<Text>,
    handles: Option<Vec<Text>>,
    image_stop_signal: Option<Text>,
    probe_latency: Option<Text>,
    probes: Option<Entries<Option<ProbeFile>>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProbeFile {
    starts_after: Option<Text>,
    listens_after: Option<Text>,
    fails_at: Option<Text>,
    recovers_at: Option<Text>,
    probe_latency: Option<Text>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AgentFile {
    restarts_at: Option<Vec<Text>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FlipFile {
    at: Text,
    api: Option<Entries<bool>>,
    node: Option<Entries<bool>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LoadFile {
    from: Text,
    to: Text,
    lateness: Text,
}

type Text = Spanned<String>;

/// A mapping whose keys keep their places.
#[derive(Debug)]
struct Entries<V>(Vec<(Text, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl File {
    fn resolve(self, plan: &PodPlan) -> Result<Scenario, ScenarioError> {
        let mut containers = BTreeMap::new();
        for (name, entry) in self.containers.map(|entries| entries.0).unwrap_or_default() {
            if !plan
                .containers
                .iter()
                .any(|container| *container.name == *name.value)
            {
                return Err(unknown_container(name, plan));
            }
            let lives = entry.unwrap_or_default().resolve(&name)?;
            containers.insert(name.value, lives);
        }
        let mut agent_restarts = Vec::new();
        for text in self.agent.unwrap_or_default().restarts_at.unwrap_or_default() {
            agent_restarts.push(moment(&text)?);
        }
        agent_restarts.sort_unstable();
        let flips = self.gates.unwrap_or_default().into_iter();
        let mut gates = flips.map(FlipFile::resolve).collect::<Result<Vec<_>, _>>()?;
        gates.sort_by_key(|flip| flip.at);
        let delete = ending(
            self.delete_at,
            self.grace_period_seconds,
            ["deleteAt", "gracePeriodSeconds"],
        )?;
        let evict_keys = ["evictAt", "evictionGracePeriodSeconds"];
        let evict = ending(self.evict_at, self.eviction_grace_period_seconds, evict_keys)?;
        let shutdown = self.shutdown_at.as_ref().map(moment).transpose()?;
        let shutdown = shutdown.map(|at| Ending { at, grace: None });
        let load = self.load.unwrap_or_default().into_iter();
        let mut load = load.map(LoadFile::resolve).collect::<Result<Vec<_>, _>>()?;
        load.sort_by_key(|load| load.from);
        Ok(Scenario {
            containers,
            agent_restarts,
            gates,
            deletes: delete.into_iter().collect(),
            evict,
            shutdown,
            load,
            shares_processes: false,
        })
    }
}

impl FlipFile {
    fn resolve(self) -> Result<GateFlip, ScenarioError> {
        Ok(GateFlip {
            at: moment(&self.at)?,
            api: gate_changes(self.api)?,
            node: gate_changes(self.node)?,
        })
    }
}

impl LoadFile {
    fn resolve(self) -> Result<Load, ScenarioError> {
        let (from, to) = (moment(&self.from)?, moment(&self.to)?);
        if to <= from {
            let message = format!(
                "to {} is not after from {}",
                self.to.value.trim(),
                self.from.value.trim()
            );
            return Err(ScenarioError::Contradiction {
                at: place(&self.to),
                message,
            });
        }
        let lateness = span(&self.lateness)?;
        Ok(Load { from, to, lateness })
    }
}

fn gate_changes(entries: Option<Entries<bool>>) -> Result<Vec<(Gate, bool)>, ScenarioError> {
    let entries = entries.map(|entries| entries.0).unwrap_or_default();
    let change = |(name, on): (Text, bool)| {
        let gate = Gate::from_name(&name.value).ok_or_else(|| ScenarioError::UnknownGate {
            at: place(&name),
            source: GateError::UnknownGate {
                name: name.value.clone(),
            },
        })?;
        Ok((gate, on))
    };
    entries.into_iter().map(change).collect()
}

fn unknown_container(name: Text, plan: &PodPlan) -> ScenarioError {
    let known: Vec<&str> = plan.containers.iter().map(|container| &*container.name).collect();
    ScenarioError::UnknownContainer {
        at: place(&name),
        name: name.value,
        known: known.join(", "),
    }
}

impl ContainerFile {
    fn resolve(self, name: &Text) -> Result<Vec<ScriptedLife>, ScenarioError> {
        let Some(lives) = self.lives else {
            return Ok(vec![ScriptedLife::default()]);
        };
        if lives.value.is_empty() {
            let message = format!("container {:?} has an empty list of lives", name.value);
            return Err(ScenarioError::Contradiction {
                at: place(&lives),
                message,
            });
        }
        lives.value.into_iter().map(LifeFile::resolve).collect()
    }
}

impl LifeFile {
    fn resolve(self) -> Result<ScriptedLife, ScenarioError> {
        let fails = window(self.fails_at.as_ref(), self.recovers_at.as_ref(), None)?;
        let mut probes = BTreeMap::new();
        for (kind, script) in self.probes.map(|entries| entries.0).unwrap_or_default() {
            probes.insert(probe_kind(&kind)?, script.unwrap_or_default().resolve(fails)?);
        }
        let starts_after = span_or_zero(self.starts_after.as_ref())?;
        Ok(ScriptedLife {
            health: ScriptedHealth {
                starts_after,
                listens_after: listening(self.listens_after.as_ref(), Some(starts_after))?,
                fails,
                latency: span_or_zero(self.probe_latency.as_ref())?,
            },
            probes,
            exit: own_exit(self.exits_at.as_ref(), self.exit_code)?,
            stops_in: span_or_zero(self.stops_in.as_ref())?,
            handles: self
                .handles
                .map(|names| names.into_iter().map(signal).collect())
                .transpose()?,
            image_stop_signal: self.image_stop_signal.map(image_signal).transpose()?,
            hooks: Hooks::default(),
        })
    }
}

impl ProbeFile {
    /// `own` is the window of the container itself, which a `recoversAt` alone cuts short.
    fn resolve(self, own: Option<Window>) -> Result<ProbeScript, ScenarioError> {
        let starts_after = self.starts_after.as_ref().map(span).transpose()?;
        Ok(ProbeScript {
            starts_after,
            listens_after: listening(self.listens_after.as_ref(), starts_after)?,
            fails: window(self.fails_at.as_ref(), self.recovers_at.as_ref(), own)?,
            latency: self.probe_latency.as_ref().map(span).transpose()?,
        })
    }
}

fn window(
    fails: Option<&Text>,
    recovers: Option<&Text>,
    inherited: Option<Window>,
) -> Result<Option<Window>, ScenarioError> {
    let from = match fails {
        Some(fails) => Some(span(fails)?),
        None => inherited.map(|window| window.from),
    };
    let Some(recovers) = recovers else {
        return Ok(fails.and(from).map(|from| Window { from, until: None }));
    };
    let until = span(recovers)?;
    let contradiction = |message: String| ScenarioError::Contradiction {
        at: place(recovers),
        message,
    };
    match from {
        None => Err(contradiction(
            "recoversAt without failsAt: nothing to recover from".to_owned(),
        )),
        Some(from) if until <= from => {
            let message = format!("recoversAt {} is not after failsAt {from}", recovers.value.trim());
            Err(contradiction(message))
        }
        Some(from) => Ok(Some(Window {
            from,
            until: Some(until),
        })),
    }
}

/// A program listens before it works, or as soon as it does. `starts_after` is `None` where another entry may say it.
fn listening(listens: Option<&Text>, starts_after: Option<Span>) -> Result<Option<Span>, ScenarioError> {
    let Some(text) = listens else { return Ok(None) };
    let listens_after = span(text)?;
    if let Some(starts_after) = starts_after
        && listens_after > starts_after
    {
        let message = format!(
            "listensAfter {} is later than startsAfter {starts_after}: it cannot work before it listens",
            text.value.trim()
        );
        return Err(ScenarioError::Contradiction {
            at: place(text),
            message,
        });
    }
    Ok(Some(listens_after))
}

fn own_exit(at: Option<&Text>, code: Option<Spanned<i64>>) -> Result<Option<OwnExit>, ScenarioError> {
    let Some(at) = at else {
        return match code {
            None => Ok(None),
            Some(code) => {
                let message = "exitCode without exitsAt: the container never exits by itself".to_owned();
                Err(ScenarioError::Contradiction {
                    at: place(&code),
                    message,
                })
            }
        };
    };
    let at = span(at)?;
    let code = match code {
        None => 0,
        Some(code) => u8::try_from(code.value).map_err(|_| {
            let message = format!("exitCode {} is not between 0 and 255", code.value);
            ScenarioError::Contradiction {
                at: place(&code),
                message,
            }
        })?,
    };
    Ok(Some(OwnExit {
        at,
        code: i32::from(code),
    }))
}

fn ending(
    at: Option<Text>,
    grace: Option<Spanned<i64>>,
    [at_key, grace_key]: [&str; 2],
) -> Result<Option<Ending>, ScenarioError> {
    let seconds = grace.as_ref().map(|grace| {
        u64::try_from(grace.value).map_err(|_| {
            let message = format!("{grace_key} {} is negative", grace.value);
            ScenarioError::Contradiction {
                at: place(grace),
                message,
            }
        })
    });
    let seconds = seconds.transpose()?;
    match (at, grace) {
        (Some(at), _) => Ok(Some(Ending {
            at: moment(&at)?,
            grace: seconds.map(Span::from_secs),
        })),
        (None, None) => Ok(None),
        (None, Some(grace)) => {
            let message = format!("{grace_key} without {at_key}");
            Err(ScenarioError::Contradiction {
                at: place(&grace),
                message,
            })
        }
    }
}

fn place<T>(spanned: &Spanned<T>) -> Place {
    spanned.referenced.into()
}

fn span(text: &Text) -> Result<Span, ScenarioError> {
    parse_duration(&text.value).map_err(|source| ScenarioError::ParseDuration {
        at: place(text),
        source,
    })
}

fn span_or_zero(text: Option<&Text>) -> Result<Span, ScenarioError> {
    text.map_or(Ok(Span::ZERO), span)
}

fn moment(text: &Text) -> Result<Time, ScenarioError> {
    Ok(Time::ZERO + span(text)?)
}

fn probe_kind(kind: &Text) -> Result<ProbeKind, ScenarioError> {
    let found = ProbeKind::ALL
        .into_iter()
        .find(|known| known.as_str() == kind.value);
    found.ok_or_else(|| ScenarioError::UnknownProbeKind {
        at: place(kind),
        kind: kind.value.clone(),
    })
}

fn signal(name: Text) -> Result<Signal, ScenarioError> {
    let signal = name.value.parse().ok();
    signal
        .filter(|signal: &Signal| signal.can_be_caught())
        .ok_or_else(|| ScenarioError::UnknownSignal {
            at: place(&name),
            signal: name.value,
        })
}

/// An image may write its signal in more ways than a manifest.
fn image_signal(name: Text) -> Result<Signal, ScenarioError> {
    Signal::from_image(&name.value).map_err(|_| ScenarioError::UnknownSignal {
        at: place(&name),
        signal: name.value,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::scenario::Ailment;
    use pulselet_engine::plan::{ContainerPlan, RestartPolicy, Role};

    fn plan(names: &[&str]) -> PodPlan {
        let container = |name: &&str| {
            Arc::new(ContainerPlan {
                name: (*name).into(),
                image: "image".into(),
                role: Role::Main,
                restart: RestartPolicy::Always,
                restart_rules: Vec::new(),
                startup: None,
                liveness: None,
                readiness: None,
                post_start: None,
                pre_stop: None,
                stop_signal: None,
            })
        };
        PodPlan {
            grace: None,
            active_deadline: None,
            containers: names.iter().map(container).collect(),
        }
    }

    fn read(text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::read(text, &plan(&["app", "proxy"]))
    }

    const FULL: &str = "
containers:
  app:
    lives:
    - startsAfter: 42s
      listensAfter: 2s
      failsAt: 300s
      recoversAt: 1.5h
      exitsAt: 900s
      exitCode: 1
      stopsIn: 5s
      handles: [SIGTERM, SIGRTMIN+1]
      imageStopSignal: SIGUSR2
      probeLatency: 20ms
      probes: {readiness: {failsAt: 60s, recoversAt: 90s}, startup: {startsAfter: 1s}}
    - {}
  proxy:
agent: {restartsAt: [120s, 1m]}
gates:
- {at: 90s, node: {ContainerStopSignals: false, StartupProbe: true}, api: {}}
- {at: 30s, api: {SubSecondProbes: false}}
deleteAt: 400s
gracePeriodSeconds: 7
evictAt: 500s
evictionGracePeriodSeconds: 0
shutdownAt: 700s
load:
- {from: 100s, to: 160s, lateness: 300ms}
- {from: 20s, to: 30s, lateness: 60ms}
";

    #[test]
    fn every_key_is_understood() {
        let scenario = read(FULL).unwrap();
        let life = scenario.life("app", 0);
        assert_eq!(
            life.exit,
            Some(OwnExit {
                at: Span::from_secs(900),
                code: 1
            })
        );
        assert_eq!(
            life.health(ProbeKind::Readiness).ailment(Span::from_secs(75)),
            Some(Ailment::Deadlocked)
        );
        assert_eq!(
            life.health(ProbeKind::Readiness).ailment(Span::from_secs(90)),
            None
        );
        assert_eq!(
            life.health(ProbeKind::Liveness).ailment(Span::from_secs(75)),
            None
        );
        assert_eq!(
            life.health(ProbeKind::Liveness).ailment(Span::from_secs(41)),
            Some(Ailment::NotServing)
        );
        assert_eq!(
            life.health(ProbeKind::Liveness).ailment(Span::from_secs(1)),
            Some(Ailment::NotUpYet)
        );
        assert_eq!(life.health(ProbeKind::Startup).ailment(Span::from_secs(41)), None);
        assert_eq!(scenario.life("app", 7), ScriptedLife::default());
        assert_eq!(scenario.life("proxy", 0), ScriptedLife::default());
        assert_eq!(
            scenario.agent_restarts,
            [60, 120].map(|s| Time::ZERO + Span::from_secs(s))
        );
        assert_eq!(
            scenario.gates[1],
            GateFlip {
                at: Time::ZERO + Span::from_secs(90),
                api: Vec::new(),
                node: vec![
                    (Gate::ContainerStopSignals, false),
                    (Gate::StartupProbeEnabled, true)
                ],
            },
            "in order of time"
        );
        assert_eq!(scenario.deletes[0].grace, Some(Span::from_secs(7)));
        let lateness = |millis| scenario.lateness(Time::ZERO + Span::from_millis(millis));
        assert_eq!(
            [99_999, 100_000, 159_999, 160_000].map(lateness),
            [0, 300, 300, 0].map(Span::from_millis)
        );
        assert_eq!(scenario.evict.unwrap().grace, Some(Span::ZERO));
        assert_eq!(scenario.shutdown.unwrap().at, Time::ZERO + Span::from_secs(700));
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let scenario = read(FULL).unwrap();
        assert_eq!(read(&scenario.to_string()), Ok(scenario));
    }

    #[test]
    fn an_empty_file_is_a_healthy_world() {
        for text in ["", "# nothing\n", "{}"] {
            assert_eq!(read(text), Ok(Scenario::default()), "{text:?}");
        }
    }

    #[test]
    fn errors_name_line_and_column() {
        let life = |text: &str| format!("containers:\n  app:\n    lives:\n    - {text}\n");
        let cases = [
            ("deletedAt: 3s\n".to_owned(), "line 1, column 1", "deletedAt"),
            (
                "containers:\n  web: {}\n".to_owned(),
                "line 2, column 3",
                "it has app, proxy",
            ),
            (
                "containers:\n  app: {life: []}\n".to_owned(),
                "line 2, column 9",
                "life",
            ),
            (
                "containers:\n  app: {lives: []}\n".to_owned(),
                "line 2, column 16",
                "empty list",
            ),
            (life("startAfter: 3s"), "line 4, column 7", "startAfter"),
            (life("startsAfter: -3s"), "line 4, column 20", "negative"),
            (life("startsAfter: soon"), "line 4, column 20", "number"),
            (life("startsAfter: 12"), "line 4, column 20", "no unit"),
            (
                life("{startsAfter: 2s, listensAfter: 3s}"),
                "line 4, column 39",
                "later than startsAfter",
            ),
            (
                life("{failsAt: 10s, recoversAt: 10s}"),
                "line 4, column 34",
                "not after failsAt",
            ),
            (life("recoversAt: 10s"), "line 4, column 19", "without failsAt"),
            (life("exitCode: 1"), "line 4, column 17", "without exitsAt"),
            (
                life("{exitsAt: 1s, exitCode: 256}"),
                "line 4, column 31",
                "between 0 and 255",
            ),
            (life("handles: [SIGKILL]"), "line 4, column 17", "SIGKILL"),
            (
                life("probes: {ready: {}}"),
                "line 4, column 16",
                "startup, liveness or readiness",
            ),
            (
                life("probes: {liveness: {fails: 1s}}"),
                "line 4, column 27",
                "fails",
            ),
            (
                "gracePeriodSeconds: 3\n".to_owned(),
                "line 1, column 21",
                "without deleteAt",
            ),
            (
                "deleteAt: 3s\ngracePeriodSeconds: -1\n".to_owned(),
                "line 2, column 21",
                "negative",
            ),
            ("deleteAt: [3s]\n".to_owned(), "line 1, column 11", ""),
            (
                "deleteAt: 3s\ndeleteAt: 4s\n".to_owned(),
                "line 2, column 1",
                "deleteAt",
            ),
            (
                "agent: {restartsAt: [x]}\n".to_owned(),
                "line 1, column 22",
                "number",
            ),
            (
                "gates: [{at: 3s, node: {Nope: true}}]\n".to_owned(),
                "line 1, column 25",
                "known gates: StartupProbeEnabled",
            ),
            (
                "gates: [{node: {StartupProbe: true}}]\n".to_owned(),
                "line 1, column",
                "at",
            ),
            ("containers: {\n".to_owned(), "line 1, column 13", ""),
        ];
        for (text, at, says) in cases {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.starts_with(at) && error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn errors_of_a_load_name_line_and_column() {
        let cases = [
            ("{from: 3s, to: 3s, lateness: 1s}", "column 23", "not after from"),
            ("{from: 3s, to: 4s}", "column", "lateness"),
            ("{from: 3s, to: 4s, late: 1s}", "column 27", "late"),
        ];
        for (text, at, says) in cases {
            let text = format!("load: [{text}]\n");
            let error = read(&text).expect_err(&text).to_string();
            let begin = format!("line 1, {at}");
            assert!(
                error.starts_with(&begin) && error.contains(says),
                "{text:?}: {error}"
            );
        }
    }
}
