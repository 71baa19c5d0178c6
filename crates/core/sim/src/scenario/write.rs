//! A scenario as the file it could have been read from.

use std::fmt::{self, Write as _};

use crate::scenario::{Ending, Hooks, ProbeScript, Scenario, ScriptedHealth, ScriptedLife, Window};
use pulselet_engine::time::{Span, Time};
use pulselet_plan::duration::format_duration;

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.containers.is_empty() {
            writeln!(f, "containers:")?;
        }
        for (name, lives) in &self.containers {
            writeln!(f, "  {name}:\n    lives:")?;
            for life in lives {
                writeln!(f, "    - {{{}}}{}", life_fields(life), hook_comment(&life.hooks))?;
            }
        }
        if !self.agent_restarts.is_empty() {
            let times: Vec<_> = self.agent_restarts.iter().map(|at| moment(*at)).collect();
            writeln!(f, "agent: {{restartsAt: [{}]}}", times.join(", "))?;
        }
        if !self.gates.is_empty() {
            writeln!(f, "gates:")?;
        }
        for flip in &self.gates {
            let mut fields = Fields::default();
            fields.push("at", moment(flip.at));
            for (part, changes) in [("node", &flip.node), ("api", &flip.api)] {
                let mut gates = Fields::default();
                for (gate, on) in changes {
                    gates.push(gate.name(), on);
                }
                fields.push(part, format_args!("{{{}}}", gates.0));
            }
            writeln!(f, "- {{{}}}", fields.0)?;
        }
        let keys = ["deleteAt", "gracePeriodSeconds"];
        for (index, ending) in self.deletes.iter().enumerate() {
            write_ending(f, ending, keys, if index == 0 { "" } else { "# and again: " })?;
        }
        if let Some(evict) = &self.evict {
            write_ending(f, evict, ["evictAt", "evictionGracePeriodSeconds"], "")?;
        }
        if let Some(shutdown) = &self.shutdown {
            writeln!(f, "shutdownAt: {}", moment(shutdown.at))?;
        }
        if !self.load.is_empty() {
            writeln!(f, "load:")?;
        }
        for load in &self.load {
            let mut fields = Fields::default();
            fields.push("from", moment(load.from));
            fields.push("to", moment(load.to));
            fields.push("lateness", format_duration(load.lateness));
            writeln!(f, "- {{{}}}", fields.0)?;
        }
        Ok(())
    }
}

fn moment(at: Time) -> String {
    format_duration(at.since(Time::ZERO))
}

fn write_ending(f: &mut fmt::Formatter<'_>, ending: &Ending, keys: [&str; 2], prefix: &str) -> fmt::Result {
    writeln!(f, "{prefix}{}: {}", keys[0], moment(ending.at))?;
    match ending.grace {
        Some(grace) => writeln!(f, "{prefix}{}: {}", keys[1], grace.as_secs_f64()),
        None => Ok(()),
    }
}

/// A list of `key: value` pairs, comma separated.
#[derive(Default)]
struct Fields(String);

impl Fields {
    fn push(&mut self, key: &str, value: impl fmt::Display) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        // Writing to a String does not fail.
        let _ = write!(self.0, "{comma}{key}: {value}");
    }

    fn span(&mut self, key: &str, span: Span) {
        if !span.is_zero() {
            self.push(key, format_duration(span));
        }
    }

    fn age(&mut self, key: &str, age: Option<Span>) {
        if let Some(age) = age {
            self.push(key, format_duration(age));
        }
    }

    fn window(&mut self, window: Option<Window>) {
        if let Some(window) = window {
            self.push("failsAt", format_duration(window.from));
            if let Some(until) = window.until {
                self.push("recoversAt", format_duration(until));
            }
        }
    }
}

fn life_fields(life: &ScriptedLife) -> String {
    let ScriptedHealth {
        starts_after,
        listens_after,
        fails,
        latency,
    } = &life.health;
    let mut fields = Fields::default();
    fields.span("startsAfter", *starts_after);
    fields.age("listensAfter", *listens_after);
    fields.window(*fails);
    if let Some(exit) = life.exit {
        fields.push("exitsAt", format_duration(exit.at));
        fields.push("exitCode", exit.code);
    }
    fields.span("stopsIn", life.stops_in);
    if let Some(signals) = &life.handles {
        let names: Vec<_> = signals.iter().map(|signal| signal.name()).collect();
        fields.push("handles", format_args!("[{}]", names.join(", ")));
    }
    if let Some(signal) = life.image_stop_signal {
        fields.push("imageStopSignal", signal);
    }
    fields.span("probeLatency", *latency);
    if !life.probes.is_empty() {
        let mut kinds = Fields::default();
        for (kind, script) in &life.probes {
            kinds.push(kind.as_str(), format_args!("{{{}}}", probe_fields(script)));
        }
        fields.push("probes", format_args!("{{{}}}", kinds.0));
    }
    fields.0
}

fn probe_fields(script: &ProbeScript) -> String {
    let mut fields = Fields::default();
    fields.age("startsAfter", script.starts_after);
    fields.age("listensAfter", script.listens_after);
    fields.window(script.fails);
    fields.age("probeLatency", script.latency);
    fields.0
}

fn hook_comment(hooks: &Hooks) -> String {
    let mut comment = String::new();
    for (name, script) in [("postStart", &hooks.post_start), ("preStop", &hooks.pre_stop)] {
        if !script.takes.is_zero() || script.fails {
            let verb = if script.fails { "fails" } else { "succeeds" };
            let _ = write!(
                comment,
                " # {name} {verb} after {}",
                format_duration(script.takes)
            );
        }
    }
    comment
}
