//! What the proposals promise, case by case. Each case is a manifest, a scenario and the event lines they give; each is
//! run again with the agent restarted at every turn, which must change nothing.

use pulselet_engine::line::{GraceFrom, LineBody};
use pulselet_engine::time::{Span, Time};
use pulselet_sim::scenario::{Ending, HookScript};

use crate::stage::{Stage, first, trace};

/// A case: its name, the pod's spec, the scenario and how long it is watched.
macro_rules! scenario {
    ($(#[$meta:meta])* $name:ident, $limit:literal, $spec:expr, $scenario:expr) => {
        scenario!($(#[$meta])* $name, $limit, $spec, $scenario, |_| ());
    };
    ($(#[$meta:meta])* $name:ident, $limit:literal, $spec:expr, $scenario:expr, $change:expr) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            let stage = Stage::new($spec, $scenario).with($change);
            insta::assert_snapshot!(stringify!($name), stage.steadfast_trace($limit));
        }
    };
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::from_secs(seconds)
}

// initializationFailureThreshold

const IFT: &str = "
containers:
- name: app
  image: x
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 3, initializationFailureThreshold: 20}";

scenario!(
    /// Never up: condemned after 20 failures.
    ift_never_up_is_killed_at_200_s, "230s", IFT, "containers: {app: {lives: [{startsAfter: 10h}, {}]}}"
);
scenario!(
    /// Up at 100 s and dead right after: the third failure condemns, 30 s after the last good tick.
    ift_dead_within_the_window_is_killed_after_30_s, "150s", IFT,
    "containers: {app: {lives: [{startsAfter: 95s, failsAt: 101s}, {}]}}"
);
scenario!(
    ift_dead_after_the_window_is_killed_after_30_s,
    "300s",
    IFT,
    "containers: {app: {lives: [{startsAfter: 95s, failsAt: 245s}, {}]}}"
);
scenario!(
    /// The larger of the two thresholds counts.
    ift_below_the_failure_threshold, "70s",
    "
containers:
- name: app
  image: x
  livenessProbe: {tcpSocket: {port: 80}, periodSeconds: 10, failureThreshold: 5, initializationFailureThreshold: 2}",
    "containers: {app: {lives: [{startsAfter: 10h}, {}]}}"
);
scenario!(
    /// One good answer ends the initial window also for readiness.
    ift_of_readiness, "20s",
    "
containers:
- name: app
  image: x
  readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 2, initializationFailureThreshold: 5}",
    "containers: {app: {lives: [{startsAfter: 3s, failsAt: 6s, recoversAt: 9s}]}}"
);

// stop signals and what the kernel does with them

const FROZEN: &str = "
terminationGracePeriodSeconds: 5
containers:
- {name: app, image: x, lifecycle: {stopSignal: SIGSTOP}}";

scenario!(
    /// Nobody can handle SIGSTOP, and it ends nothing: SIGKILL comes when the grace period is over.
    sigstop_ends_nothing, "20s", FROZEN, "deleteAt: 10s"
);
scenario!(
    /// PID 1 that does not handle its stop signal is killed by nothing but SIGKILL.
    pid_1_ignores_what_it_does_not_handle, "20s",
    "
terminationGracePeriodSeconds: 5
containers:
- {name: app, image: x, lifecycle: {stopSignal: SIGUSR1}}",
    "{containers: {app: {lives: [{handles: [SIGTERM]}]}}, deleteAt: 10s}"
);
scenario!(
    /// A process that is not PID 1 ends by the default action, with 128 and the number of the signal.
    the_default_action_ends_others, "20s",
    "
shareProcessNamespace: true
containers:
- {name: app, image: x, lifecycle: {stopSignal: SIGUSR1}}",
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 10s}"
);
scenario!(
    /// SIGWINCH ends nobody by default, PID 1 or not.
    the_default_action_of_sigwinch_ends_nobody, "20s",
    "
hostPID: true
terminationGracePeriodSeconds: 5
containers:
- {name: app, image: x, lifecycle: {stopSignal: SIGWINCH}}",
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 10s}"
);
scenario!(
    /// The image's signal is sent where the manifest names none.
    the_images_stop_signal_is_sent, "20s",
    "
containers:
- {name: app, image: x}",
    "{containers: {app: {lives: [{imageStopSignal: usr2, stopsIn: 1s}]}}, deleteAt: 10s}"
);

// startupProbe

const STARTUP: &str = "
containers:
- name: app
  image: x
  startupProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 30}
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1}
  readinessProbe: {httpGet: {port: 80}, periodSeconds: 5}";

scenario!(
    /// Liveness would have killed it at 10 s; it is not asked before the start-up probe has succeeded.
    startup_keeps_liveness_and_readiness_away, "80s", STARTUP, "containers: {app: {lives: [{startsAfter: 42s}]}}"
);
scenario!(
    startup_kills_at_its_failure_threshold,
    "310s",
    STARTUP,
    "containers: {app: {lives: [{startsAfter: 10h}, {}]}}"
);
scenario!(
    up_one_second_before_the_budget_lives,
    "310s",
    STARTUP,
    "containers: {app: {lives: [{startsAfter: 299s}]}}"
);
scenario!(
    a_pod_deleted_before_it_started_is_never_started,
    "60s",
    STARTUP,
    "{containers: {app: {lives: [{startsAfter: 25s, stopsIn: 8s}]}}, deleteAt: 22s}"
);

// sub-second periods and looks

fn readiness(fields: &str) -> String {
    format!("containers:\n- name: app\n  image: x\n  readinessProbe: {{{fields}}}")
}

scenario!(
    /// 0.5 s until the first success, 1 s from there on, 0.5 s again in the next life.
    half_a_second_becomes_one_after_success, "8s",
    &readiness("tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: -500"),
    "containers: {app: {lives: [{startsAfter: 1700ms, exitsAt: 5100ms, exitCode: 1}, {startsAfter: 1200ms}]}}"
);
scenario!(
    a_second_and_a_half_stays,
    "7s",
    &readiness("tcpSocket: {port: 80}, periodSeconds: 1, periodMilliseconds: 500"),
    "containers: {app: {lives: [{startsAfter: 2s}]}}"
);
scenario!(
    exec_probes_have_a_floor_of_half_a_second,
    "4s",
    &readiness("exec: {command: [ok]}, periodSeconds: 1, periodMilliseconds: -500"),
    "containers: {app: {lives: [{startsAfter: 1200ms}]}}"
);
scenario!(
    up_after_60_ms_is_seen_at_100_ms,
    "2s",
    &readiness("tcpSocket: {port: 80}, periodSeconds: 10"),
    "containers: {app: {lives: [{startsAfter: 60ms}]}}"
);
scenario!(
    /// Nobody listens until 60 ms; the look at 100 ms is the one request that does not count.
    a_program_that_listens_early_sees_one_look, "3s",
    &readiness("httpGet: {port: 80}, periodSeconds: 1"),
    "containers: {app: {lives: [{listensAfter: 60ms, startsAfter: 700ms}]}}"
);
/// "Every 200 ms" is every 200 ms also against a server that accepts and hangs.
#[test]
fn a_short_timeout_keeps_a_fast_probe_fast() {
    let asked = |timeout: &str| {
        let spec = readiness(&format!(
            "httpGet: {{port: 80}}, periodSeconds: 1, periodMilliseconds: -800{timeout}"
        ));
        let lines = Stage::new(&spec, "containers: {app: {lives: [{probeLatency: 10s}]}}").lines("3s");
        let ticks = lines
            .iter()
            .filter(|line| matches!(line.body, LineBody::Probe { look: false, .. }));
        ticks.count()
    };
    assert_eq!(asked(""), 2, "a second each, from 0.2 s on");
    assert_eq!(asked(", timeoutMilliseconds: -800"), 14);
}

scenario!(
    a_command_looks_once,
    "3s",
    &readiness("exec: {command: [ok]}, periodSeconds: 1"),
    "containers: {app: {lives: [{startsAfter: 400ms}]}}"
);
/// It accepts and hangs: the look is over when the first tick is due, and the grid is kept.
#[test]
fn a_look_that_hangs_leaves_the_grid_alone() {
    let spec = readiness("httpGet: {port: 80}, periodSeconds: 2");
    let lines = Stage::new(&spec, "containers: {app: {lives: [{probeLatency: 10s}]}}").lines("6s");
    let probes: Vec<_> = lines
        .iter()
        .filter(|line| matches!(line.body, LineBody::Probe { .. }))
        .map(|line| line.at.since(Time::ZERO).as_secs_f64())
        .collect();
    // The look has the timeout of one second; each tick is asked at its place and times out a second later.
    assert_eq!(probes, [1.0, 3.0, 5.0]);
    let spec = readiness("httpGet: {port: 80}, periodSeconds: 2, timeoutSeconds: 5");
    let lines = Stage::new(&spec, "containers: {app: {lives: [{probeLatency: 10s}]}}").lines("8s");
    assert_eq!(
        first(&lines, |body| matches!(body, LineBody::Probe { look: true, .. })),
        Some(2.0)
    );
    assert_eq!(
        first(&lines, |body| matches!(body, LineBody::Probe { look: false, .. })),
        Some(7.0)
    );
}

scenario!(
    an_initial_delay_in_milliseconds,
    "2s",
    &readiness(
        "tcpSocket: {port: 80}, periodSeconds: 1, initialDelaySeconds: 1, initialDelayMilliseconds: -250"
    ),
    "{}"
);

// The grace period

const PATIENT: &str = "
terminationGracePeriodSeconds: 3600
containers:
- name: app
  image: x
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1, terminationGracePeriodSeconds: 60}";

scenario!(
    a_wedged_container_gets_the_grace_of_its_probe,
    "200s",
    PATIENT,
    "containers: {app: {lives: [{failsAt: 95s, handles: []}, {}]}}"
);
scenario!(
    deletion_uses_the_grace_of_the_pod,
    "2h",
    PATIENT,
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 95s}"
);
scenario!(
    deletion_with_its_own_grace,
    "2h",
    PATIENT,
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 95s, gracePeriodSeconds: 7}"
);
scenario!(
    eviction_uses_the_grace_of_the_pod,
    "2h",
    PATIENT,
    "{containers: {app: {lives: [{handles: []}]}}, evictAt: 95s}"
);
scenario!(
    eviction_with_its_own_grace,
    "200s",
    PATIENT,
    "{containers: {app: {lives: [{handles: []}]}}, evictAt: 95s, evictionGracePeriodSeconds: 3}"
);
scenario!(
    /// The eviction's own grace cuts a kill short that a probe began; the other container is only evicted.
    eviction_beside_a_kill, "200s",
    "
terminationGracePeriodSeconds: 600
containers:
- name: app
  image: x
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1, terminationGracePeriodSeconds: 60}
- {name: other, image: x}",
    "{containers: {app: {lives: [{failsAt: 15s, handles: []}]}, other: {lives: [{stopsIn: 2s}]}}, evictAt: 30s,
      evictionGracePeriodSeconds: 5}"
);
/// The machine goes down: the pod has the time that is left, in the order of every end, and no other life begins. A pod of a
/// machine has not ended by it, so its phase stays.
#[test]
fn a_shutdown_stops_a_pod_in_the_time_that_is_left() {
    let spec = "
terminationGracePeriodSeconds: 60
initContainers:
- {name: proxy, image: x, restartPolicy: Always}
containers:
- {name: app, image: x}";
    let scenario =
        "{containers: {app: {lives: [{stopsIn: 4s}]}, proxy: {lives: [{handles: []}]}}, shutdownAt: 20s}";
    let stage = Stage::new(spec, scenario)
        .with(|scenario| *scenario = scenario.clone().with_time_for_shutdown(Span::from_secs(10)));
    insta::assert_snapshot!(trace(&stage.lines("10m")));
}

scenario!(
    without_a_probe_level_grace_the_pod_rules,
    "120s",
    "
terminationGracePeriodSeconds: 12
containers:
- name: app
  image: x
  startupProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 2}",
    "containers: {app: {lives: [{startsAfter: 10h, handles: []}, {}]}}"
);
scenario!(
    the_startup_probe_has_its_own_grace, "120s",
    "
terminationGracePeriodSeconds: 12
containers:
- name: app
  image: x
  startupProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 2, terminationGracePeriodSeconds: 4}",
    "containers: {app: {lives: [{startsAfter: 10h, handles: []}, {}]}}"
);
scenario!(
    /// No stop signal and no hook: SIGKILL at once, which exceeds nothing.
    grace_0_kills_at_once, "40s",
    "
terminationGracePeriodSeconds: 30
containers:
- name: app
  image: x
  lifecycle: {preStop: {sleep: {seconds: 5}}}
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1, terminationGracePeriodSeconds: 0}",
    "containers: {app: {lives: [{failsAt: 15s, stopsIn: 5s}, {}]}}"
);

/// The node's grace period is for probe kills of pods that name none, where it is shorter.
#[test]
fn a_node_can_shorten_the_grace_of_probe_kills() {
    use GraceFrom::{Deletion, NodeDefault, Pod, Probe};
    let graces = |spec: &str, scenario: &str| {
        let mut stage = Stage::new(spec, scenario);
        stage.settings.probe_grace = Some(Span::from_secs(9));
        let lines = stage.lines("3m");
        let graces = lines.iter().filter_map(|line| match line.body {
            LineBody::Killing {
                grace_period_seconds,
                grace_from,
                ..
            } => Some((grace_period_seconds.as_secs_f64(), grace_from)),
            _ => None,
        });
        graces.collect::<Vec<_>>()
    };
    let spec = |pod: u32, probe: &str| {
        format!(
            "terminationGracePeriodSeconds: {pod}\ncontainers:\n- name: app\n  image: x\n  livenessProbe: {{httpGet: {{port: 80}}, \
             failureThreshold: 1{probe}}}"
        )
    };
    let sick = "{containers: {app: {lives: [{failsAt: 5s}, {}]}}, deleteAt: 60s}";
    let named = ", terminationGracePeriodSeconds: 20";
    assert_eq!(
        graces(&spec(30, ""), sick),
        [(9.0, NodeDefault), (30.0, Deletion)]
    );
    assert_eq!(graces(&spec(5, ""), sick), [(5.0, Pod), (5.0, Deletion)]);
    assert_eq!(graces(&spec(30, named), sick), [(20.0, Probe), (30.0, Deletion)]);
}

// Hooks and signals

scenario!(
    a_pre_stop_hook_eats_from_the_grace,
    "60s",
    "
terminationGracePeriodSeconds: 10
containers: [{name: app, image: x, lifecycle: {preStop: {sleep: {seconds: 6}}}}]",
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 5s}"
);
scenario!(
    a_pre_stop_hook_that_eats_it_all_leaves_2_s,
    "60s",
    "
terminationGracePeriodSeconds: 10
containers: [{name: app, image: x, lifecycle: {preStop: {exec: {command: [drain]}}}}]",
    "{containers: {app: {lives: [{handles: []}]}}, deleteAt: 5s}",
    |scenario| {
        let lives = scenario.containers.get_mut("app").expect("the app");
        lives[0].hooks.pre_stop = HookScript {
            takes: Span::from_secs(3600),
            fails: false,
        };
    }
);
scenario!(
    a_failed_pre_stop_hook_stops_nothing,
    "60s",
    "
terminationGracePeriodSeconds: 10
containers: [{name: app, image: x, lifecycle: {preStop: {tcpSocket: {port: 80}}}}]",
    "{containers: {app: {lives: [{stopsIn: 3s}]}}, deleteAt: 5s}"
);
scenario!(
    the_stop_signal_of_the_manifest,
    "60s",
    "
os: {name: linux}
containers: [{name: app, image: x, lifecycle: {stopSignal: SIGUSR1}}]",
    "{containers: {app: {lives: [{stopsIn: 3s}]}}, deleteAt: 5s}"
);
scenario!(
    a_signal_that_is_ignored_ends_in_sigkill,
    "60s",
    "
os: {name: linux}
containers: [{name: app, image: x, lifecycle: {stopSignal: SIGUSR1}}]",
    "{containers: {app: {lives: [{handles: [SIGTERM]}]}}, deleteAt: 5s}"
);
scenario!(
    sigkill_as_the_stop_signal_exceeds_nothing,
    "60s",
    "
os: {name: linux}
containers: [{name: app, image: x, lifecycle: {stopSignal: SIGKILL}}]",
    "{containers: {app: {lives: [{stopsIn: 3s}]}}, deleteAt: 5s}"
);

// The end of a pod

const SIDECARS: &str = "
terminationGracePeriodSeconds: 20
initContainers:
- {name: proxy, image: x, restartPolicy: Always}
- {name: log, image: x, restartPolicy: Always}
containers: [{name: app, image: x}]";

scenario!(
    sidecars_stop_after_the_mains_in_reverse_order, "60s", SIDECARS,
    "{containers: {app: {lives: [{stopsIn: 5s}]}, log: {lives: [{stopsIn: 3s}]}, proxy: {lives: [{stopsIn: 1s}]}},
      deleteAt: 10s}"
);
scenario!(
    sidecars_do_not_wait_longer_than_the_grace, "60s", SIDECARS,
    "{containers: {app: {lives: [{handles: []}]}, log: {lives: [{stopsIn: 1s}]}, proxy: {lives: [{handles: []}]}},
      deleteAt: 10s}"
);
scenario!(
    sidecars_go_when_the_mains_are_done,
    "60s",
    "
restartPolicy: Never
initContainers: [{name: proxy, image: x, restartPolicy: Always}]
containers: [{name: app, image: x}]",
    "containers: {app: {lives: [{exitsAt: 10s}]}, proxy: {lives: [{stopsIn: 2s}]}}"
);
scenario!(
    /// Readiness fails and is told; liveness fails as well and is not asked.
    readiness_goes_on_during_termination, "60s",
    "
terminationGracePeriodSeconds: 30
containers:
- name: app
  image: x
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 5, failureThreshold: 1}
  readinessProbe: {httpGet: {port: 80}, periodSeconds: 5, failureThreshold: 1}",
    "{containers: {app: {lives: [{failsAt: 23s, stopsIn: 15s}]}}, deleteAt: 22s}"
);
scenario!(
    /// The shorter of the two deadlines counts, and nothing is started again.
    a_delete_during_a_liveness_kill, "120s", PATIENT,
    "{containers: {app: {lives: [{failsAt: 15s, handles: []}]}}, deleteAt: 30s, gracePeriodSeconds: 10}"
);
scenario!(
    a_longer_delete_during_a_liveness_kill,
    "120s",
    PATIENT,
    "{containers: {app: {lives: [{failsAt: 15s, handles: []}]}}, deleteAt: 30s}"
);
scenario!(
    a_second_shorter_delete,
    "120s",
    PATIENT,
    "containers: {app: {lives: [{handles: []}]}}",
    |scenario| {
        let grace = Some(Span::from_secs(5));
        scenario.deletes = vec![
            Ending {
                at: at(30),
                grace: None,
            },
            Ending { at: at(40), grace },
        ];
    }
);
scenario!(
    an_active_deadline_ends_the_pod,
    "60s",
    "
activeDeadlineSeconds: 20
terminationGracePeriodSeconds: 5
containers: [{name: app, image: x}]",
    "containers: {app: {lives: [{stopsIn: 2s}]}}"
);

// Restarts

scenario!(
    /// A probe's kill is a failure whatever the exit code is.
    on_failure_restarts_after_a_probe_kill_with_exit_code_0, "40s",
    "
restartPolicy: OnFailure
containers:
- {name: app, image: x, livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1}}",
    "containers: {app: {lives: [{failsAt: 5s}, {exitsAt: 20s}]}}"
);
scenario!(
    never_ends_the_pod_after_a_probe_kill, "40s",
    "
restartPolicy: Never
terminationGracePeriodSeconds: 20
containers:
- name: app
  image: x
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1, terminationGracePeriodSeconds: 3}",
    "containers: {app: {lives: [{failsAt: 5s, handles: []}]}}"
);
scenario!(
    exits_back_off,
    "30m",
    "containers: [{name: app, image: x}]",
    "containers: {app: {lives: [{exitsAt: 2s, exitCode: 1}]}}"
);
scenario!(
    a_long_life_resets_the_back_off,
    "30m",
    "containers: [{name: app, image: x}]",
    "containers: {app: {lives: [{exitsAt: 2s}, {exitsAt: 2s}, {exitsAt: 11m}, {exitsAt: 2s}, {}]}}"
);
scenario!(
    probe_kills_back_off_by_the_life_before,
    "3m",
    "
containers:
- {name: app, image: x, livenessProbe: {httpGet: {port: 80}, periodSeconds: 2, failureThreshold: 2}}",
    "containers: {app: {lives: [{startsAfter: 10h}]}}"
);
scenario!(
    /// It served longer than its back-off, so it is replaced at once.
    a_container_that_served_is_replaced_at_once, "8m",
    "
containers:
- {name: app, image: x, livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 3}}",
    "containers: {app: {lives: [{failsAt: 90s}, {failsAt: 90s}, {failsAt: 90s}, {}]}}"
);
scenario!(
    failed_post_start_hooks_back_off,
    "2m",
    "containers: [{name: app, image: x, lifecycle: {postStart: {exec: {command: [warm]}}}}]",
    "{}",
    |scenario| {
        let mut life = pulselet_sim::scenario::ScriptedLife::default();
        life.hooks.post_start = HookScript {
            takes: Span::ZERO,
            fails: true,
        };
        scenario.containers.insert("app".to_owned(), vec![life]);
    }
);
scenario!(
    init_containers_run_one_by_one, "60s",
    "
initContainers:
- {name: first, image: x}
- name: proxy
  image: x
  restartPolicy: Always
  startupProbe: {tcpSocket: {port: 80}, periodSeconds: 2, failureThreshold: 10}
- {name: second, image: x}
containers: [{name: app, image: x}]",
    "containers: {first: {lives: [{exitsAt: 3s, exitCode: 1}, {exitsAt: 3s}]}, proxy: {lives: [{startsAfter: 5s}]},
      second: {lives: [{exitsAt: 1s}]}}"
);
scenario!(
    only_the_condemned_container_is_replaced,
    "60s",
    "
containers:
- {name: app, image: x, livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1}}
- {name: other, image: x, readinessProbe: {httpGet: {port: 80}, periodSeconds: 10}}",
    "containers: {app: {lives: [{failsAt: 15s, stopsIn: 4s}, {}]}}"
);

// rules that restart all containers

/// A pod of every role, whose main container restarts all of them by exit code 42.
const ALL_ROLES: &str = "
restartPolicy: Never
terminationGracePeriodSeconds: 30
initContainers:
- {name: setup, image: x}
- {name: proxy, image: x, restartPolicy: Always, lifecycle: {preStop: {sleep: {seconds: 5}}}}
containers:
- name: app
  image: x
  restartPolicy: Never
  restartPolicyRules:
  - {action: Restart, exitCodes: {operator: In, values: [7]}}
  - {action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0, 3]}}
- {name: other, image: x, lifecycle: {preStop: {sleep: {seconds: 5}}}}";

scenario!(
    /// No hook runs, the sidecar stops last, and the pod begins with its init container.
    all_containers_restart_by_a_rule, "40s", ALL_ROLES,
    "containers: {setup: {lives: [{exitsAt: 1s}]}, app: {lives: [{exitsAt: 10s, exitCode: 42}, {}]},
      other: {lives: [{stopsIn: 1s}, {}]}}"
);
scenario!(
    /// A container that does not end has two seconds.
    all_containers_restart_after_the_least_grace, "40s", ALL_ROLES,
    "containers: {setup: {lives: [{exitsAt: 1s}]}, app: {lives: [{exitsAt: 10s, exitCode: 42}, {}]},
      other: {lives: [{stopsIn: 1h}, {}]}}"
);
scenario!(
    /// The first rule that matches decides, and without one the restart policy does.
    a_rule_for_one_container_comes_first, "60s", ALL_ROLES,
    "containers: {setup: {lives: [{exitsAt: 1s}]}, app: {lives: [{exitsAt: 5s, exitCode: 7}, {exitsAt: 5s, exitCode: 3}]}}"
);
scenario!(
    /// A container that waits for its back-off, and another that has finished, begin again.
    waiting_and_finished_containers_restart_too, "60s",
    "
restartPolicy: OnFailure
containers:
- {name: done, image: x}
- {name: failing, image: x}
- name: app
  image: x
  restartPolicy: Never
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]",
    "containers: {done: {lives: [{exitsAt: 1s}, {}]}, failing: {lives: [{exitsAt: 1s, exitCode: 1}, {exitsAt: 1s, exitCode: 1}, {}]},
      app: {lives: [{exitsAt: 5s, exitCode: 42}, {}]}}"
);
scenario!(
    /// The sidecar that was up ends with it, and there is no back-off.
    an_init_container_restarts_all, "30s",
    "
initContainers:
- {name: proxy, image: x, restartPolicy: Always}
- name: setup
  image: x
  restartPolicy: OnFailure
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
containers: [{name: app, image: x}]",
    "containers: {setup: {lives: [{exitsAt: 2s, exitCode: 42}, {exitsAt: 2s, exitCode: 42}, {exitsAt: 2s}]}}"
);
scenario!(
    a_sidecar_restarts_all,
    "30s",
    "
initContainers:
- name: proxy
  image: x
  restartPolicy: Always
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
containers: [{name: app, image: x}]",
    "containers: {proxy: {lives: [{exitsAt: 10s, exitCode: 42}, {}]}}"
);
scenario!(
    /// A container that its probe condemned counts by its exit code.
    a_condemned_container_restarts_all, "60s",
    "
containers:
- name: app
  image: x
  restartPolicy: Always
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [1]}}]
  livenessProbe: {httpGet: {port: 80}, periodSeconds: 10, failureThreshold: 1}
- {name: other, image: x}",
    "containers: {app: {lives: [{failsAt: 15s}, {}]}}"
);
scenario!(
    /// A pod that is deleted while its containers end does not begin again.
    a_deleted_pod_does_not_restart, "60s", ALL_ROLES,
    "{containers: {setup: {lives: [{exitsAt: 1s}]}, app: {lives: [{exitsAt: 10s, exitCode: 42}, {}]},
      other: {lives: [{stopsIn: 1h}, {}]}}, deleteAt: 12s}"
);
