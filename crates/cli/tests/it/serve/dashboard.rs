//! The dashboard over an API, in a real browser: the same page for pods that some node somewhere runs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::json;

use super::cluster::{Cluster, pod};
use crate::e2e::browser::{self, Browser};

/// A running `pulselet dashboard --kubeconfig`, and the address that it printed.
struct Page {
    child: Child,
    url: String,
}

impl Page {
    fn start(cluster: &Cluster) -> Self {
        let mut command = cluster.command("dashboard");
        command.arg("--kubeconfig").arg(cluster.kubeconfig());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("pulselet starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut url)
            .expect("the first line");
        Self {
            child,
            url: url.trim().to_owned(),
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_dashboard_shows_the_pods_of_an_api() {
    if !browser::is_usable() {
        return;
    }
    let Some(mut cluster) = Cluster::apart(&[], &[]) else {
        return;
    };
    cluster.until_node_ready();
    let probe = json!({"exec": {"command": ["sh", "-c", "echo out of order; exit 1"]}, "periodSeconds": 1,
        "failureThreshold": 2, "terminationGracePeriodSeconds": 1});
    let script = "trap '' TERM; echo '<b>hello</b>'; while :; do sleep 0.1; done";
    let hung = json!({"command": ["sh", "-c", script], "livenessProbe": probe});
    let page = Page::start(&cluster);
    let browser = Browser::open(&page.url);
    browser.until("No pods in the namespace default.");
    // A pod, its kill and its next life come to the page by themselves.
    cluster.apply(&pod("hung", &hung));
    browser.until("1 pod");
    browser.until("killed by liveness: 2 × “out of order” over");
    browser.until("grace 1 s of the probe, exit code 137");
    let label = browser.evaluate("document.querySelector('article canvas').getAttribute('aria-label')");
    assert!(
        label.as_str().is_some_and(|label| label.contains("kill")),
        "{label}"
    );
    browser.evaluate("location.hash = '#/pod/default/hung'");
    browser.until("<b>hello</b>");
    browser.evaluate("document.getElementById('tab-happened').click()");
    browser.until("Scheduled: Successfully assigned default/hung");
    browser.evaluate("document.getElementById('tab-manifest').click()");
    browser.until("Notices a hang after");
    // An API that is away takes nothing from the page, and one that is back is followed.
    browser.evaluate("location.hash = '#/'");
    cluster.kill_api();
    browser.until("the API does not answer");
    browser.until("default/hung");
    cluster.revive_api();
    let live = "document.getElementById('link').textContent";
    cluster.until("live page", || (browser.evaluate(live) == "live").then_some(()));
    cluster.kubectl(&["delete", "pod", "hung", "--grace-period", "0", "--force"]);
    browser.until("No pods in the namespace default.");
}

#[test]
fn a_kubeconfig_that_does_not_lead_to_pods_says_what_to_do() {
    let Some(cluster) = Cluster::serve(&[]) else {
        return;
    };
    let dashboard = |file: &std::path::Path| {
        let mut command = cluster.command("dashboard");
        let output = command
            .arg("--kubeconfig")
            .arg(file)
            .stderr(Stdio::piped())
            .output()
            .expect("it runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, complaint) = dashboard(&cluster.path("none"));
    assert_eq!(code, Some(2), "{complaint}");
    let own = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let address = own
        .lines()
        .find(|line| line.contains("server:"))
        .expect("a server");
    let nowhere = own.replace(address, "    server: https://127.0.0.1:1");
    std::fs::write(cluster.path("nowhere"), nowhere).expect("writes");
    let (code, complaint) = dashboard(&cluster.path("nowhere"));
    assert_eq!(code, Some(3), "{complaint}");
    assert!(
        complaint.contains("cannot list the pods of namespace default"),
        "{complaint}"
    );
    assert!(complaint.contains("get pods"), "{complaint}");
}
