//! Which calls fail and which events are lost, decided by a seeded generator.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// How often what goes wrong. The default is a runtime that never fails.
#[derive(Debug, Clone, Default)]
pub struct RuntimeFaults {
    pub seed: u64,
    /// Chance from 0 to 1 that a verb fails without having done anything.
    pub fails: f64,
    /// Chance that a verb is carried out and its answer lost.
    pub loses_answer: f64,
    /// Chance that an event is lost; receivers get a resync instead, after `resync_after`.
    pub loses_event: f64,
    pub resync_after: Duration,
    /// Longest time a verb may take in addition; each takes a random part of it.
    pub slowness: Duration,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Works,
    Fails,
    LosesAnswer,
}

#[derive(Debug)]
pub(crate) struct Dice {
    faults: RuntimeFaults,
    rng: StdRng,
}

impl Dice {
    pub(crate) fn new(faults: RuntimeFaults) -> Self {
        let rng = StdRng::seed_from_u64(faults.seed);
        Self { faults, rng }
    }

    /// How long a call takes, and what becomes of it.
    pub(crate) fn call(&mut self) -> (Duration, Fate) {
        let delay = self.faults.slowness.mul_f64(self.rng.random::<f64>());
        let roll = self.rng.random::<f64>();
        let fate = if roll < self.faults.fails {
            Fate::Fails
        } else if roll < self.faults.fails + self.faults.loses_answer {
            Fate::LosesAnswer
        } else {
            Fate::Works
        };
        (delay, fate)
    }

    /// The time after which receivers learn that an event was lost; `None` if it was not.
    pub(crate) fn event(&mut self) -> Option<Duration> {
        (self.rng.random::<f64>() < self.faults.loses_event).then_some(self.faults.resync_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_misfortune() {
        let faults = RuntimeFaults {
            seed: 7,
            fails: 0.3,
            loses_answer: 0.3,
            slowness: Duration::from_secs(1),
            ..RuntimeFaults::default()
        };
        let rolls = |seed| {
            let mut dice = Dice::new(RuntimeFaults {
                seed,
                ..faults.clone()
            });
            (0..50).map(|_| dice.call()).collect::<Vec<_>>()
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        for fate in [Fate::Works, Fate::Fails, Fate::LosesAnswer] {
            assert!(
                rolls(7).iter().any(|(_, other)| *other == fate),
                "{fate:?} happens"
            );
        }
        let mut none = Dice::new(RuntimeFaults::default());
        assert!((0..50).all(|_| none.call() == (Duration::ZERO, Fate::Works) && none.event().is_none()));
    }
}
