//! Random pods in random worlds.

use std::num::NonZero;
use std::sync::Arc;

use pulselet_engine::plan::{ContainerPlan, PodPlan, ProbePlan, Role};
use pulselet_engine::time::{Span, Time};
use pulselet_sim::case::Case;
use pulselet_sim::faults::FaultPlan;
use pulselet_sim::oracle::{Oracles, Punctuality, Violation};
use pulselet_sim::trial::{self, Broken, event_lines, shrink, try_case};
use pulselet_sim::{Scenario, Simulation};

use pulselet_model::openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};

use crate::stage::Stage;

const THREADS: NonZero<usize> = NonZero::new(2).expect("not zero");

#[test]
fn ten_thousand_seeds_hold() {
    if let Err(seed) = trial::try_seeds(0, 10_000, THREADS) {
        panic!(
            "{}",
            trial::report(seed).unwrap_or_else(|| format!("seed {seed} failed once, and then no more"))
        );
    }
}

/// Seeds beyond those that were broken once.
#[test]
fn what_was_broken_holds() {
    for seed in [
        // A life that an agent had forgotten before it began was started beside the one after it.
        107_336,
        // A container was started although the pod's deadline had passed while the agent stood still.
        107_475,
    ] {
        assert!(trial::try_seeds(seed, 1, THREADS).is_ok(), "seed {seed}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let lines = |seed| {
        let case = Case::random(seed);
        let mut lines = Vec::new();
        let blueprint = case.blueprint().expect("random pods are admitted");
        Simulation::new(case.setup(&blueprint))
            .run(case.limit, |simulation| {
                lines.extend(simulation.last_step().lines.iter().cloned());
                Ok::<(), std::convert::Infallible>(())
            })
            .expect("nobody objects");
        event_lines(&case, &lines)
    };
    for seed in 0..50 {
        assert_eq!(Case::random(seed), Case::random(seed));
        assert_eq!(lines(seed), lines(seed), "seed {seed}");
    }
}

/// Runs a stage under oracles that were told another plan; returns the rule they found broken.
fn noticed(stage: &Stage, change: impl FnOnce(&mut ContainerPlan)) -> Option<&'static str> {
    let mut told = PodPlan::clone(&stage.blueprint.plan);
    change(Arc::make_mut(&mut told.containers[0]));
    let mut oracles = Oracles::new(Arc::new(told), &stage.settings, Punctuality::Exact);
    let limit = Time::ZERO + Span::from_secs(600);
    let outcome = Simulation::new(stage.setup()).run(limit, |simulation| oracles.check(simulation));
    outcome.err().map(|violation| violation.rule)
}

fn with_liveness(plan: &mut ContainerPlan, change: impl FnOnce(&mut ProbePlan)) {
    change(Arc::make_mut(plan.liveness.as_mut().expect("a liveness probe")));
}

/// An oracle that cannot fail tells nothing.
#[test]
fn oracles_notice_what_is_wrong() {
    let stage = Stage::new(
        "
terminationGracePeriodSeconds: 20
containers:
- {name: app, image: x, livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 3}}
- {name: other, image: x}",
        "{containers: {app: {lives: [{failsAt: 45s, handles: []}, {stopsIn: 5s}]}, other: {lives: [{stopsIn: 9s}]}},
          deleteAt: 200s}",
    );
    assert_eq!(noticed(&stage, |_| ()), None);
    let more_patient = noticed(&stage, |plan| {
        with_liveness(plan, |probe| probe.failure_threshold = 4);
    });
    assert_eq!(
        more_patient,
        Some("never a kill before the threshold that the manifest gives")
    );
    let less_patient = noticed(&stage, |plan| {
        with_liveness(plan, |probe| probe.failure_threshold = 2);
    });
    assert_eq!(less_patient, Some("a kill always within the bound explain gives"));
    let later = noticed(&stage, |plan| {
        with_liveness(plan, |probe| probe.initial_delay = Span::from_secs(50));
    });
    assert_eq!(later, Some("no probe of a kind while its gate is closed"));
    let last = noticed(&stage, |plan| plan.role = Role::Sidecar);
    assert_eq!(
        last,
        Some("a sidecar is signalled only when all mains are gone or the grace is over")
    );
    let unstarted = noticed(&stage, |plan| plan.name = "nobody".into());
    assert_eq!(unstarted, Some("lines name containers of the pod"));
}

/// What is wrong with where a pod came to rest, for oracles that expect another world.
fn unsettled(stage: &Stage, expected: &str) -> Option<String> {
    let mut oracles = Oracles::new(
        Arc::clone(&stage.blueprint.plan),
        &stage.settings,
        Punctuality::Exact,
    );
    let mut simulation = Simulation::new(stage.setup());
    let limit = Time::ZERO + Span::from_secs(900);
    simulation
        .run(limit, |simulation| oracles.check(simulation))
        .expect("every step is right");
    let scenario = Scenario::read(expected, &stage.blueprint.plan).expect("a scenario");
    oracles
        .check_end(&simulation, &scenario, Time::ZERO)
        .err()
        .map(|violation| violation.message)
}

#[test]
fn oracles_notice_where_a_pod_does_not_belong() {
    let spec = "
containers:
- {name: app, image: x, startupProbe: {tcpSocket: {port: 80}}, readinessProbe: {tcpSocket: {port: 80}}}";
    let unready = "containers: {app: {lives: [{probes: {readiness: {failsAt: 100s}}}]}}";
    let healthy = Stage::new(spec, "{}");
    assert_eq!(unsettled(&healthy, "{}"), None);
    assert_eq!(
        unsettled(&healthy, "deleteAt: 10s").as_deref(),
        Some("it was deleted and is still there")
    );
    let broken = "containers: {app: {lives: [{failsAt: 0s}]}}";
    assert_eq!(
        unsettled(&healthy, broken).as_deref(),
        Some("app is broken and runs on")
    );
    let sick = Stage::new(spec, unready);
    assert_eq!(unsettled(&sick, unready), None);
    assert_eq!(
        unsettled(&sick, "{}").as_deref(),
        Some("app is well: started true, ready false")
    );
}

/// Of a case that fails because of one thing, little more than that thing is left.
#[test]
fn a_failing_case_is_cut_down_to_its_core() {
    let kills = |case: &Case| {
        let covered = try_case(case)?;
        let killed = case.scenario.deletes.iter().any(|delete| delete.grace.is_some());
        if !killed {
            return Ok(covered);
        }
        let violation = Violation {
            rule: "no delete has a grace",
            at: Time::ZERO,
            message: String::new(),
        };
        Err(Box::new(Broken {
            violation,
            lines: Vec::new(),
        }))
    };
    let (case, broken) = (0..)
        .map(Case::random)
        .find_map(|case| kills(&case).err().map(|broken| (case, broken)))
        .expect("some case has such a delete");
    let (small, broken) = shrink(&case, *broken, kills);
    assert_eq!(broken.violation.rule, "no delete has a grace");
    assert_eq!(small.pod.spec.containers.len(), 1);
    assert!(small.pod.spec.init_containers.is_empty() && small.pod.spec.containers[0].lifecycle.is_none());
    assert_eq!((small.scenario.deletes.len(), &small.scenario.evict), (1, &None));
    assert_eq!(small.faults, FaultPlan::default());
}

/// Random pods, each with a container that restarts all of them when it fails.
#[test]
fn seeds_hold_with_a_rule_that_restarts_all() {
    let rule = ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "NotIn".to_owned(),
            values: Some(vec![0]),
        }),
    };
    for seed in 0..1_500 {
        let mut case = Case::random(seed);
        let spec = &mut case.pod.spec;
        let count = spec.init_containers.len() + spec.containers.len();
        let place = usize::try_from(seed).expect("it fits") % count;
        let mut containers = spec.init_containers.iter_mut().chain(&mut spec.containers);
        let container = containers.nth(place).expect("it is one of them");
        container.restart_policy.get_or_insert_with(|| "Never".to_owned());
        container.restart_policy_rules = vec![rule.clone()];
        if let Err(broken) = try_case(&case) {
            panic!("seed {seed}: {}\n{case}", broken.violation);
        }
    }
}
