//! From what is left of everything to the node's conditions, and to what has to be reclaimed.
//!
//! A threshold that is crossed makes its condition true at once, and the condition stays for a while after the last
//! moment at which it was crossed, so that it does not come and go. Pods are evicted for a hard threshold at once, for a
//! soft one after it was crossed for its grace period without a break.

use std::collections::BTreeMap;

use pulselet_engine::time::{Span, Time};
use pulselet_plan::duties::{EvictionSettings, EvictionThreshold, PressureSignal};

use super::signals::{Level, PressureReadings};

/// What the node runs out of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureConditions {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl PressureConditions {
    /// The names of those that are true, in upstream's order.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all = [
            (self.memory, "MemoryPressure"),
            (self.disk, "DiskPressure"),
            (self.pids, "PIDPressure"),
        ];
        all.into_iter()
            .filter_map(|(is_true, name)| is_true.then_some(name))
            .collect()
    }
}

/// Something of which there must be more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reclaim {
    pub(crate) signal: PressureSignal,
    /// How much there must be.
    pub(crate) floor: u64,
    /// How much there is.
    pub(crate) available: u64,
    /// The longest grace period of whoever goes for it; `None` if hardly any is left.
    pub(crate) grace: Option<Span>,
}

/// Remembers for how long which threshold was crossed.
#[derive(Debug)]
pub(crate) struct Pressure {
    settings: EvictionSettings,
    /// By the threshold's place in the settings: since when it is crossed without a break.
    crossed_since: BTreeMap<usize, Time>,
    last_crossed: BTreeMap<PressureSignal, Time>,
}

impl Pressure {
    pub(crate) fn new(settings: EvictionSettings) -> Self {
        Self {
            settings,
            crossed_since: BTreeMap::new(),
            last_crossed: BTreeMap::new(),
        }
    }

    /// Takes a look into account. What could not be measured is as it was: nobody goes for it.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        readings: &PressureReadings,
    ) -> (PressureConditions, Option<Reclaim>) {
        let mut due = Vec::new();
        for (place, threshold) in self.settings.thresholds.iter().enumerate() {
            let Some(level) = readings.level(threshold.signal) else {
                continue;
            };
            if level.available >= threshold.floor.of(level.capacity) {
                self.crossed_since.remove(&place);
                continue;
            }
            self.last_crossed.insert(threshold.signal, now);
            let since = *self.crossed_since.entry(place).or_insert(now);
            if threshold.soft.is_none_or(|grace| now.since(since) >= grace) {
                due.push(self.reclaim(threshold, level));
            }
        }
        // Memory comes first: without it nothing else works. A hard threshold leaves no time for a soft one's grace.
        due.sort_by_key(|reclaim| {
            (
                reclaim.signal != PressureSignal::MemoryAvailable,
                reclaim.grace.is_some(),
            )
        });
        (self.conditions(now), due.first().copied())
    }

    fn reclaim(&self, threshold: &EvictionThreshold, level: Level) -> Reclaim {
        Reclaim {
            signal: threshold.signal,
            floor: threshold.floor.of(level.capacity),
            available: level.available,
            grace: threshold.soft.map(|_| self.settings.max_pod_grace),
        }
    }

    fn conditions(&self, now: Time) -> PressureConditions {
        let period = self.settings.transition_period;
        let is_true = |signal| {
            let crossed = self.last_crossed.get(&signal);
            crossed.is_some_and(|at| *at == now || now.since(*at) < period)
        };
        PressureConditions {
            memory: is_true(PressureSignal::MemoryAvailable),
            disk: is_true(PressureSignal::NodeFsAvailable) || is_true(PressureSignal::NodeFsInodesFree),
            pids: is_true(PressureSignal::PidAvailable),
        }
    }
}

#[cfg(test)]
mod tests {
    use pulselet_plan::duties::Floor;

    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn memory(available: u64) -> PressureReadings {
        PressureReadings {
            memory: Some(Level {
                available,
                capacity: 1000,
            }),
            ..PressureReadings::default()
        }
    }

    fn settings(soft: Option<Span>) -> EvictionSettings {
        EvictionSettings {
            thresholds: vec![EvictionThreshold {
                signal: PressureSignal::MemoryAvailable,
                floor: Floor::Part(1_000),
                soft,
            }],
            max_pod_grace: Span::from_secs(7),
            transition_period: Span::from_secs(60),
            is_explicit: true,
        }
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_its_condition_stays_for_a_while() {
        let mut pressure = Pressure::new(settings(None));
        assert_eq!(
            pressure.observe(at(1), &memory(100)),
            (PressureConditions::default(), None)
        );
        let (conditions, reclaim) = pressure.observe(at(10), &memory(99));
        assert_eq!(conditions.names(), ["MemoryPressure"]);
        let reclaim = reclaim.expect("memory is short");
        assert_eq!((reclaim.floor, reclaim.available, reclaim.grace), (100, 99, None));
        let (conditions, reclaim) = pressure.observe(at(69), &memory(500));
        assert_eq!((conditions.memory, reclaim), (true, None));
        let (conditions, _) = pressure.observe(at(70), &memory(500));
        assert!(!conditions.memory);
    }

    #[test]
    fn a_soft_threshold_must_be_crossed_without_a_break() {
        let mut pressure = Pressure::new(settings(Some(Span::from_secs(30))));
        assert_eq!(pressure.observe(at(0), &memory(1)).1, None);
        assert_eq!(pressure.observe(at(20), &memory(500)).1, None);
        assert_eq!(pressure.observe(at(30), &memory(1)).1, None);
        assert_eq!(pressure.observe(at(59), &memory(1)).1, None);
        let reclaim = pressure.observe(at(60), &memory(1)).1.expect("it lasted");
        assert_eq!(reclaim.grace, Some(Span::from_secs(7)));
    }

    #[test]
    fn what_is_not_measured_evicts_nobody() {
        let mut pressure = Pressure::new(settings(None));
        let nothing = pressure.observe(at(1), &PressureReadings::default());
        assert_eq!(nothing, (PressureConditions::default(), None));
    }
}
