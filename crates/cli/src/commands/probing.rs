//! How containers are probed and stopped at this moment, in the words of `ps -o wide` and `history`.

use std::io::{self, Write};

use pulselet_agent::{PodView, ProbeView};
use pulselet_engine::plan::ProbeKind;
use pulselet_model::status::ContainerStatusFields;

use crate::output::{BOLD, RESET};

/// Period and timeout of each kind of probe as `10s/1s`, in the order of [`ProbeKind::ALL`]; nothing where there is none.
///
/// The kinds are columns, so that three probes fit beside everything else of a container.
pub(super) fn cells(pod: &PodView, container: &str) -> [Option<String>; ProbeKind::ALL.len()] {
    ProbeKind::ALL.map(|kind| {
        let probe = probes(pod, container).find(|probe| probe.kind == kind)?;
        Some(format!("{}/{}", brief(probe.period_ms), brief(probe.timeout_ms)))
    })
}

/// Prints a paragraph for each container that runs or is to run again, or for the one of that name.
pub(super) fn print(out: &mut impl Write, pods: &[PodView], only: Option<&str>) -> io::Result<()> {
    for pod in pods {
        let statuses = pod.status.init_container_statuses.iter();
        for status in statuses.chain(&pod.status.container_statuses) {
            let is_asked_for = only.is_none_or(|name| name == status.name);
            if is_asked_for && status.state.terminated.is_none() {
                writeln!(out)?;
                print_container(out, pod, status)?;
            }
        }
    }
    Ok(())
}

fn print_container(out: &mut impl Write, pod: &PodView, status: &ContainerStatusFields) -> io::Result<()> {
    let name = &status.name;
    writeln!(out, "{BOLD}{}  container {name}{RESET}  now", pod.pod_name())?;
    if probes(pod, name).next().is_none() {
        writeln!(out, "  {:<9}none", "probe")?;
    }
    for probe in probes(pod, name) {
        let kind = probe.kind.as_str();
        let (period, timeout) = (brief(probe.period_ms), brief(probe.timeout_ms));
        writeln!(out, "  {:<9}{kind} every {period}, timeout {timeout}", "probe")?;
    }
    match pod.stop_signals.get(name) {
        Some(signal) => writeln!(out, "  {:<9}{signal} stops it", "signal"),
        None => writeln!(
            out,
            "  {:<9}not known: no life of it was created yet, or its runtime does not say",
            "signal"
        ),
    }
}

fn probes<'a>(pod: &'a PodView, container: &'a str) -> impl Iterator<Item = &'a ProbeView> {
    pod.probes
        .iter()
        .filter(move |probe| probe.container == container)
}

/// `500ms`, `1s` or `1.5s`.
fn brief(milliseconds: u64) -> String {
    let (seconds, rest) = (milliseconds / 1_000, milliseconds % 1_000);
    match (seconds, rest) {
        (_, 0) => format!("{seconds}s"),
        (0, _) => format!("{rest}ms"),
        (_, _) => format!("{seconds}.{}s", format!("{rest:03}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(probes: &Value, signals: &Value) -> PodView {
        let running = |name: &str| {
            json!({
                "name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}, "lastState": {},
            })
        };
        let mut ended = running("setup");
        ended["state"] = json!({"terminated": {"exitCode": 0}});
        serde_json::from_value(json!({
            "namespace": "default", "name": "web", "uid": "u", "origin": "run", "deleting": false,
            "acceptedAt": "2026-01-02T03:04:05Z", "probes": probes, "stopSignals": signals,
            "status": {
                "initContainerStatuses": [ended],
                "containerStatuses": [running("app"), running("cache")],
            },
        }))
        .unwrap()
    }

    fn probe(kind: &str, period_ms: u64, timeout_ms: u64) -> Value {
        json!({"container": "app", "kind": kind, "periodMs": period_ms, "timeoutMs": timeout_ms})
    }

    fn printed(pod: PodView, only: Option<&str>) -> String {
        let mut out = Vec::new();
        print(&mut out, &[pod], only).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn cells_have_period_and_timeout_of_every_probe() {
        let probes = json!([probe("liveness", 10_000, 2_500), probe("readiness", 500, 200)]);
        let pod = pod(&probes, &json!({}));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(cells(&pod, "app"), [None, some("10s/2.5s"), some("500ms/200ms")]);
        assert_eq!(cells(&pod, "cache"), [None, None, None]);
    }

    #[test]
    fn a_container_is_told_with_its_probes_and_its_signal() {
        let probes = json!([probe("liveness", 10_000, 1_000), probe("readiness", 500, 1_000)]);
        let pod = pod(&probes, &json!({"app": "SIGUSR1", "setup": "SIGTERM"}));
        insta::assert_snapshot!(printed(pod.clone(), None), @r"

        default/web  container app  now
          probe    liveness every 10s, timeout 1s
          probe    readiness every 500ms, timeout 1s
          signal   SIGUSR1 stops it

        default/web  container cache  now
          probe    none
          signal   not known: no life of it was created yet, or its runtime does not say
        ");
        let only = printed(pod, Some("cache"));
        assert!(only.contains("cache") && !only.contains("app"), "{only}");
    }

    #[test]
    fn spans_are_brief() {
        let told = [0, 200, 999, 1_000, 1_050, 1_500, 60_000].map(brief);
        assert_eq!(told, ["0s", "200ms", "999ms", "1s", "1.05s", "1.5s", "60s"]);
    }
}
