//! Feature gates: which of the added fields are in force.
//!
//! A [`GateSet`] is a plain value. The API and the node each hold their own, so every version skew the
//! fields were designed for can be played through. All gates are on unless someone turns one off.
//!
//! This module only says which gates are on; `dropping` applies them to Pods, the node to running containers.

use std::fmt;
use std::str::FromStr;

/// One feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// `startupProbe`.
    StartupProbeEnabled,
    /// `terminationGracePeriodSeconds` of a probe.
    ProbeTerminationGracePeriod,
    /// `periodMilliseconds`, `initialDelayMilliseconds` and `timeoutMilliseconds`.
    SubSecondProbes,
    /// `lifecycle.stopSignal`.
    ContainerStopSignals,
    /// `initializationFailureThreshold`.
    ProbeInitializationFailureThreshold,
}

impl Gate {
    /// Every gate, in the order they are listed to users.
    pub const ALL: [Self; 5] = [
        Self::StartupProbeEnabled,
        Self::ProbeTerminationGracePeriod,
        Self::SubSecondProbes,
        Self::ContainerStopSignals,
        Self::ProbeInitializationFailureThreshold,
    ];

    /// The name users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StartupProbeEnabled => "StartupProbeEnabled",
            Self::ProbeTerminationGracePeriod => "ProbeTerminationGracePeriod",
            Self::SubSecondProbes => "SubSecondProbes",
            Self::ContainerStopSignals => "ContainerStopSignals",
            Self::ProbeInitializationFailureThreshold => "ProbeInitializationFailureThreshold",
        }
    }

    /// How far upstream has taken the feature, as its metrics say it; empty for what is generally available.
    pub const fn stage(self) -> &'static str {
        match self {
            Self::StartupProbeEnabled | Self::ProbeTerminationGracePeriod => "",
            Self::SubSecondProbes
            | Self::ContainerStopSignals
            | Self::ProbeInitializationFailureThreshold => "ALPHA",
        }
    }

    /// Finds a gate by its name or its one alias, `StartupProbe`.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "StartupProbe" {
            return Some(Self::StartupProbeEnabled);
        }
        Self::ALL.into_iter().find(|gate| gate.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The gates that are on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GateSet(u8);

impl GateSet {
    /// Every gate on: the default of every part.
    pub const ALL: Self = Self((1 << Gate::ALL.len()) - 1);
    /// Every gate off.
    pub const NONE: Self = Self(0);

    pub const fn enabled(self, gate: Gate) -> bool {
        self.0 & gate.bit() != 0
    }

    #[must_use]
    pub const fn with(self, gate: Gate, on: bool) -> Self {
        if on {
            Self(self.0 | gate.bit())
        } else {
            Self(self.0 & !gate.bit())
        }
    }

    /// All combinations, for tests that must hold under any of them.
    pub fn combinations() -> impl Iterator<Item = Self> {
        (0..=Self::ALL.0).map(Self)
    }

    /// Applies `A=true,B=false` on top of this set. Later settings win, as on upstream's command lines.
    pub fn apply(self, settings: &str) -> Result<Self, GateError> {
        let mut set = self;
        for setting in settings
            .split(',')
            .map(str::trim)
            .filter(|setting| !setting.is_empty())
        {
            let (name, value) = setting.split_once('=').ok_or_else(|| GateError::MissingValue {
                setting: setting.to_owned(),
            })?;
            set = set.apply_one(name.trim(), value.trim())?;
        }
        Ok(set)
    }

    /// Applies one named setting; `value` is spelled as Go's `ParseBool` accepts it.
    pub fn apply_one(self, name: &str, value: &str) -> Result<Self, GateError> {
        let gate = Gate::from_name(name).ok_or_else(|| GateError::UnknownGate {
            name: name.to_owned(),
        })?;
        let on = match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                return Err(GateError::ParseValue {
                    gate,
                    value: value.to_owned(),
                });
            }
        };
        Ok(self.with(gate, on))
    }
}

impl Default for GateSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromStr for GateSet {
    type Err = GateError;

    fn from_str(settings: &str) -> Result<Self, GateError> {
        Self::default().apply(settings)
    }
}

impl fmt::Debug for GateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(
                Gate::ALL
                    .into_iter()
                    .filter(|gate| self.enabled(*gate))
                    .map(Gate::name),
            )
            .finish()
    }
}

impl fmt::Display for GateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, gate) in Gate::ALL.into_iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{gate}={}", self.enabled(gate))?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unknown feature gate {name:?}; known gates: {}", known_gates())]
    UnknownGate { name: String },
    #[error("feature gate setting {setting:?} has no value; write it as Name=true or Name=false")]
    MissingValue { setting: String },
    #[error("feature gate {gate} cannot be set to {value:?}; use true or false")]
    ParseValue { gate: Gate, value: String },
}

fn known_gates() -> String {
    Gate::ALL.map(Gate::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_applied_in_order_on_top_of_the_defaults() {
        let set: GateSet = "SubSecondProbes=false, StartupProbe=false,SubSecondProbes=true"
            .parse()
            .unwrap();
        assert!(set.enabled(Gate::SubSecondProbes));
        assert!(!set.enabled(Gate::StartupProbeEnabled));
        assert!(set.enabled(Gate::ContainerStopSignals));
    }

    #[test]
    fn an_unknown_gate_lists_the_known_ones() {
        let error = "Nope=true".parse::<GateSet>().unwrap_err().to_string();
        for gate in Gate::ALL {
            assert!(error.contains(gate.name()), "{error}");
        }
    }

    #[test]
    fn a_setting_needs_a_boolean() {
        assert!(matches!(
            "SubSecondProbes".parse::<GateSet>(),
            Err(GateError::MissingValue { .. })
        ));
        assert!(matches!(
            "SubSecondProbes=on".parse::<GateSet>(),
            Err(GateError::ParseValue { .. })
        ));
    }

    #[test]
    fn what_is_printed_parses_to_the_same_set() {
        for set in GateSet::combinations() {
            assert_eq!(GateSet::NONE.apply(&set.to_string()), Ok(set));
        }
    }
}
