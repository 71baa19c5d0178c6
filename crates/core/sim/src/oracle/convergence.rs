//! Where a pod must have come to rest once the world behaves.

use pulselet_engine::line::Phase;
use pulselet_engine::plan::{ContainerPlan, ProbeKind, RestartPolicy, Role};
use pulselet_engine::status::{ContainerReport, ReportedState};
use pulselet_engine::time::{Span, Time};

use super::{Oracles, Verdict};
use crate::scenario::{Scenario, ScriptedLife};
use crate::simulation::Simulation;

const RULE: &str = "after faults end, the pod converges to what its policy says";

/// How long a container must have been left in peace before it is judged: longer than any random manifest needs to
/// start, to be noticed and to be stopped.
pub const SETTLED_AFTER: Span = Span::from_secs(240);

pub(super) fn check(
    oracles: &Oracles,
    simulation: &Simulation,
    scenario: &Scenario,
    faults_end: Time,
) -> Verdict {
    let now = simulation.now();
    let asked = |at: Time| at + SETTLED_AFTER <= now && faults_end + SETTLED_AFTER <= now;
    if scenario.deletes.iter().any(|delete| asked(delete.at)) {
        return oracles.ensure(simulation.pod().is_over(), RULE, || {
            "it was deleted and is still there".to_owned()
        });
    }
    // A pod that was stopped with its machine waits for an agent, which may come or not.
    if oracles.awaits_boot {
        let is_due = oracles.ending.is_some_and(asked);
        return oracles.ensure(!is_due || simulation.pod().is_stopped(), RULE, || {
            "the machine goes down and something of it still runs".to_owned()
        });
    }
    let status = simulation.pod().status();
    let finished = status.phase.is_terminal();
    let was_ended = oracles.ending.is_some();
    if let Some(at) = oracles.ending
        && asked(at)
        && scenario.deletes.is_empty()
    {
        oracles.ensure(status.phase == Phase::Failed || finished, RULE, || {
            format!("it was ended at {at:?} and its phase is {:?}", status.phase)
        })?;
    }
    // Gates that were flipped make other lives than the first plan says.
    if was_ended || oracles.flipped || !asked(Time::ZERO) {
        return Ok(());
    }
    let plans = &oracles.plan.containers;
    for (plan, container) in plans.iter().zip(&status.containers) {
        check_container(oracles, plan, container, scenario, now, finished)?;
    }
    Ok(())
}

fn check_container(
    oracles: &Oracles,
    plan: &ContainerPlan,
    status: &ContainerReport,
    scenario: &Scenario,
    now: Time,
    finished: bool,
) -> Verdict {
    let name = &plan.name;
    match &status.state {
        ReportedState::Running { started_at } => {
            oracles.ensure(!finished, RULE, || format!("{name} runs on in a finished pod"))?;
            let life = scenario.life(name, status.restart_count);
            let settled = *started_at + SETTLED_AFTER <= now && is_well(plan, &life, now.since(*started_at));
            oracles.ensure(!settled || (status.started && status.ready), RULE, || {
                format!(
                    "{name} is well: started {}, ready {}",
                    status.started, status.ready
                )
            })?;
            let never_up =
                *started_at + SETTLED_AFTER <= now && is_condemned(plan, &life, now.since(*started_at));
            oracles.ensure(!never_up, RULE, || format!("{name} is broken and runs on"))
        }
        ReportedState::Terminated(ended) => {
            let again = match plan.restart {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => ended.exit_code != 0,
                RestartPolicy::Never => false,
            };
            let over = finished || plan.role == Role::Init && ended.exit_code == 0;
            oracles.ensure(over || !again, RULE, || {
                format!("{name} exited with {} and is not restarted", ended.exit_code)
            })
        }
        ReportedState::Waiting { .. } => Ok(()),
    }
}

/// Whether probes of this life have been good for a while.
fn is_well(plan: &ContainerPlan, life: &ScriptedLife, age: Span) -> bool {
    let good = |kind| {
        let Some(probe) = plan.probe(kind) else {
            return true;
        };
        let health = life.health(kind);
        let recovered = match health.fails {
            None => true,
            Some(window) => window.until.is_some_and(|until| until + SETTLED_AFTER <= age),
        };
        health.latency < probe.timeout && health.starts_after + SETTLED_AFTER <= age && recovered
    };
    life.exit.is_none() && ProbeKind::ALL.into_iter().all(good)
}

/// Whether this life can never satisfy a probe that kills.
fn is_condemned(plan: &ContainerPlan, life: &ScriptedLife, age: Span) -> bool {
    let bad = |kind| {
        let Some(probe) = plan.probe(kind) else {
            return false;
        };
        let health = life.health(kind);
        health.latency >= probe.timeout
            || health
                .fails
                .is_some_and(|window| window.from.is_zero() && window.until.is_none_or(|until| until > age))
    };
    // The stop itself may take as long as the grace period, which random manifests keep short.
    bad(ProbeKind::Startup) || (plan.startup.is_none() && bad(ProbeKind::Liveness))
}
