//! Cutting a failing case down: whatever can go while it still breaks the same rule goes.

use pulselet_engine::plan::Settings;
use pulselet_engine::time::Span;
use pulselet_model::Container;

use super::{Broken, Covered};
use crate::case::Case;
use crate::faults::{FaultPlan, Rates};
use crate::scenario::{Hooks, ScriptedLife};

/// Trials spent on one case. Each takes about a millisecond.
const MAX_TRIALS: usize = 3_000;

/// The smallest case found that breaks the same rule when it is tried again.
pub fn shrink(
    case: &Case,
    broken: Broken,
    attempt: impl Fn(&Case) -> Result<Covered, Box<Broken>>,
) -> (Case, Broken) {
    let (mut smallest, mut broken) = (case.clone(), broken);
    let mut trials = 0;
    loop {
        let mut smaller = None;
        for candidate in candidates(&smallest) {
            trials += 1;
            if trials > MAX_TRIALS {
                return (smallest, broken);
            }
            match attempt(&candidate) {
                Err(found) if found.violation.rule == broken.violation.rule => {
                    smaller = Some((candidate, *found));
                    break;
                }
                Err(_) | Ok(_) => {}
            }
        }
        match smaller {
            Some(found) => (smallest, broken) = found,
            None => return (smallest, broken),
        }
    }
}

/// Every case that is one step simpler.
fn candidates(case: &Case) -> Vec<Case> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut Case)| {
        let mut simpler = case.clone();
        change(&mut simpler);
        if simpler != *case {
            found.push(simpler);
        }
    };
    add(&|it| it.faults = FaultPlan::default());
    add(&|it| it.settings = Settings::default());
    for place in 0..case.pod.spec.init_containers.len() {
        add(&|it| {
            let gone = it.pod.spec.init_containers.remove(place);
            it.scenario.containers.remove(&gone.name);
        });
    }
    if case.pod.spec.containers.len() > 1 {
        for place in 0..case.pod.spec.containers.len() {
            add(&|it| {
                let gone = it.pod.spec.containers.remove(place);
                it.scenario.containers.remove(&gone.name);
            });
        }
    }
    simpler_faults(case, &mut add);
    simpler_requests(case, &mut add);
    simpler_containers(case, &mut add);
    simpler_lives(case, &mut add);
    found
}

type Add<'a> = dyn FnMut(&dyn Fn(&mut Case)) + 'a;

fn simpler_faults(case: &Case, add: &mut Add<'_>) {
    for place in 0..case.faults.crashes.len() {
        add(&|it| {
            without(&mut it.faults.crashes, place);
        });
        add(&|it| it.faults.crashes[place].down = Span::ZERO);
        add(&|it| it.faults.crashes[place].loses_database = false);
    }
    for place in 0..case.faults.outages.len() {
        add(&|it| {
            without(&mut it.faults.outages, place);
        });
    }
    for place in 0..case.faults.clock_jumps.len() {
        add(&|it| {
            without(&mut it.faults.clock_jumps, place);
        });
    }
    for place in 0..case.faults.stalls.len() {
        add(&|it| {
            without(&mut it.faults.stalls, place);
        });
    }
    add(&|it| it.faults.rates = Rates::default());
    let each: [fn(&mut Rates) -> &mut u8; 6] = [
        |it| &mut it.sandbox_fails,
        |it| &mut it.image_fails,
        |it| &mut it.create_fails,
        |it| &mut it.start_fails,
        |it| &mut it.exec_errors,
        |it| &mut it.repeated,
    ];
    for rate in each {
        add(&|it| *rate(&mut it.faults.rates) = 0);
    }
    add(&|it| it.faults.runtime_latency = Span::ZERO);
    add(&|it| it.faults.report_delay = Span::ZERO);
}

fn simpler_requests(case: &Case, add: &mut Add<'_>) {
    for place in 0..case.scenario.agent_restarts.len() {
        add(&|it| {
            without(&mut it.scenario.agent_restarts, place);
        });
    }
    for place in 0..case.scenario.deletes.len() {
        add(&|it| {
            without(&mut it.scenario.deletes, place);
        });
        add(&|it| it.scenario.deletes[place].grace = None);
    }
    add(&|it| it.scenario.evict = None);
    add(&|it| it.scenario.shutdown = None);
    for place in 0..case.scenario.load.len() {
        add(&|it| {
            without(&mut it.scenario.load, place);
        });
    }
    add(&|it| it.scenario.gates = Vec::new());
    for index in 0..case.scenario.gates.len() {
        add(&|it| {
            it.scenario.gates.remove(index);
        });
    }
    add(&|it| it.pod.spec.active_deadline_seconds = None);
    add(&|it| it.pod.spec.termination_grace_period_seconds = None);
}

fn simpler_containers(case: &Case, add: &mut Add<'_>) {
    let changes: [fn(&mut Container); 14] = [
        |it| it.startup_probe = None,
        |it| it.liveness_probe = None,
        |it| it.readiness_probe = None,
        |it| it.lifecycle = None,
        |it| it.lifecycle.iter_mut().for_each(|it| it.post_start = None),
        |it| it.lifecycle.iter_mut().for_each(|it| it.pre_stop = None),
        |it| it.lifecycle.iter_mut().for_each(|it| it.stop_signal = None),
        |it| probes(it, |probe| probe.initial_delay_seconds = 0),
        |it| probes(it, |probe| probe.initial_delay_milliseconds = None),
        |it| probes(it, |probe| probe.period_milliseconds = None),
        |it| probes(it, |probe| probe.timeout_milliseconds = None),
        |it| probes(it, |probe| probe.initialization_failure_threshold = 0),
        |it| probes(it, |probe| probe.termination_grace_period_seconds = None),
        |it| probes(it, |probe| probe.failure_threshold = 1),
    ];
    for change in changes {
        for place in 0..case.pod.spec.init_containers.len() {
            add(&|it| change(&mut it.pod.spec.init_containers[place]));
        }
        for place in 0..case.pod.spec.containers.len() {
            add(&|it| change(&mut it.pod.spec.containers[place]));
        }
    }
}

fn probes(container: &mut Container, change: fn(&mut pulselet_model::Probe)) {
    let Container {
        startup_probe,
        liveness_probe,
        readiness_probe,
        ..
    } = container;
    for probe in [startup_probe, liveness_probe, readiness_probe]
        .into_iter()
        .flatten()
    {
        change(probe);
    }
}

fn simpler_lives(case: &Case, add: &mut Add<'_>) {
    let changes: [fn(&mut ScriptedLife); 9] = [
        |it| {
            *it = ScriptedLife {
                exit: it.exit,
                ..ScriptedLife::default()
            }
        },
        |it| it.health.starts_after = Span::ZERO,
        |it| it.health.fails = None,
        |it| it.health.latency = Span::ZERO,
        |it| it.probes.clear(),
        |it| it.exit = None,
        |it| it.stops_in = Span::ZERO,
        |it| it.handles = None,
        |it| it.hooks = Hooks::default(),
    ];
    for (name, lives) in &case.scenario.containers {
        for place in 0..lives.len() {
            let lives_of = |it: &mut Case, change: &dyn Fn(&mut Vec<ScriptedLife>)| {
                it.scenario.containers.get_mut(name).into_iter().for_each(change);
            };
            if lives.len() > 1 {
                add(&|it| lives_of(it, &|lives| without(lives, place)));
            }
            for change in changes {
                add(&|it| lives_of(it, &|lives| change(&mut lives[place])));
            }
        }
    }
}

fn without<T>(list: &mut Vec<T>, place: usize) {
    list.remove(place);
}
