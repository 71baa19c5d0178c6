//! Trying cases: one with its oracles, many on several threads, and a failing one cut down to its core.

mod shrink;

use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pulselet_engine::line::{Line, LineRecord};
use pulselet_engine::time::{Span, Time};

use crate::case::Case;
use crate::oracle::{Oracles, Violation};
use crate::simulation::Simulation;
pub use shrink::shrink;

/// A case that broke a rule, and all that was told until then.
#[derive(Clone, Debug)]
pub struct Broken {
    pub violation: Violation,
    pub lines: Vec<Line>,
}

/// What a trial covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    pub seeds: u64,
    pub steps: u64,
    pub simulated: Span,
}

/// Runs one case under all oracles.
pub fn try_case(case: &Case) -> Result<Covered, Box<Broken>> {
    let mut lines = Vec::new();
    // A panic of the engine is a finding like any other.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| watch(case, &mut lines)));
    let violation = match outcome {
        Ok(Ok(covered)) => return Ok(covered),
        Ok(Err(violation)) => violation,
        Err(payload) => Violation {
            rule: "the engine does not panic",
            at: lines.last().map_or(Time::ZERO, |line: &Line| line.at),
            message: panic_message(payload.as_ref()),
        },
    };
    Err(Box::new(Broken { violation, lines }))
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

fn watch(case: &Case, lines: &mut Vec<Line>) -> Result<Covered, Violation> {
    let blueprint = case.blueprint().map_err(|message| Violation {
        rule: "random pods are admitted",
        at: Time::ZERO,
        message,
    })?;
    let mut oracles = Oracles::new(Arc::clone(&blueprint.plan), &case.settings, case.punctuality());
    let mut simulation = Simulation::new(case.setup(&blueprint));
    let mut steps = 0;
    simulation.run(case.limit, |simulation| {
        steps += 1;
        lines.extend(simulation.last_step().lines.iter().cloned());
        oracles.check(simulation)
    })?;
    oracles.check_end(&simulation, &case.scenario, case.faults.until)?;
    Ok(Covered {
        seeds: 1,
        steps,
        simulated: simulation.now().since(Time::ZERO),
    })
}

/// Event lines as JSON, as far as the case got.
pub fn event_lines(case: &Case, lines: &[Line]) -> String {
    let pod = case.pod_name();
    let json = |line: &Line| {
        let record = LineRecord {
            t: line.at.since(Time::ZERO).as_secs_f64(),
            time: None,
            pod: &pod,
            container: line.container.as_deref(),
            body: &line.body,
        };
        serde_json::to_string(&record).expect("an event line can be written")
    };
    lines.iter().map(|line| json(line) + "\n").collect()
}

/// Tries `count` seeds from `first` on, on as many threads; stops at the first that fails.
pub fn try_seeds(first: u64, count: u64, threads: NonZero<usize>) -> Result<Covered, u64> {
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(u64::MAX);
    let worker = || {
        let mut covered = Covered::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || failed.load(Ordering::Relaxed) != u64::MAX {
                return covered;
            }
            let seed = first.wrapping_add(number);
            match try_case(&Case::random(seed)) {
                Ok(one) => covered = covered.with(one),
                Err(_) => {
                    failed.fetch_min(number, Ordering::Relaxed);
                }
            }
        }
    };
    let covered = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(worker)).collect();
        let results = workers
            .into_iter()
            .map(|it| it.join().expect("a trial catches panics"));
        results.fold(Covered::default(), Covered::with)
    });
    match failed.into_inner() {
        u64::MAX => Ok(covered),
        number => Err(first.wrapping_add(number)),
    }
}

impl Covered {
    fn with(self, other: Self) -> Self {
        Self {
            seeds: self.seeds + other.seeds,
            steps: self.steps + other.steps,
            simulated: self.simulated + other.simulated,
        }
    }
}

/// All there is to say about a failing seed: the seed, the smallest case that still fails the same way, its lines.
pub fn report(seed: u64) -> Option<String> {
    let case = Case::random(seed);
    let first = try_case(&case).err()?;
    let (small, broken) = shrink(&case, *first, try_case);
    let lines = event_lines(&small, &broken.lines);
    Some(format!(
        "seed {seed} fails: {}\nreplay it with --seed {seed}; shrunk to:\n{small}# event lines\n{lines}",
        broken.violation
    ))
}
