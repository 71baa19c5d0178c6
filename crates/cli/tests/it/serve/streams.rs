//! Logs, exec, attach, port-forward and cp, by kubectls of today and of 2021, with real processes behind them: plain ones,
//! and those in containers of `pulselet cri`, where every stream passes our client and our server of CRI as well.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::{Value, json};

use super::cluster::{Cluster, kubectl_program, pod, shell};

/// A test of a cluster, once with plain processes and once by way of CRI.
macro_rules! both_ways {
    ($name:ident, serve) => {
        both_ways!($name, Cluster::serve(&[]), Cluster::serve_by_cri());
    };
    ($name:ident, apart) => {
        both_ways!($name, Cluster::apart(&[], &[]), Cluster::apart_by_cri());
    };
    ($name:ident, $process:expr, $cri:expr) => {
        mod $name {
            use super::*;

            #[test]
            #[expect(non_snake_case, reason = "named after the runtime")]
            fn Process() {
                if let Some(cluster) = $process {
                    super::$name(&cluster);
                }
            }

            #[test]
            #[expect(non_snake_case, reason = "named after the runtime")]
            fn OwnCri() {
                if let Some(cluster) = $cri {
                    super::$name(&cluster);
                }
            }
        }
    };
}

/// A kubectl and how it speaks.
#[derive(Debug)]
struct Kubectl {
    program: OsString,
    /// As it did before WebSocket.
    spdy: bool,
}

/// All there are. In CI all must be there.
fn kubectls() -> Vec<Kubectl> {
    let recent = |spdy| Kubectl {
        program: kubectl_program(),
        spdy,
    };
    let mut all = vec![recent(false), recent(true)];
    let old = std::env::var_os("PULSELET_OLD_KUBECTL");
    if pulselet_testing::requires("kubectl 1.20 (PULSELET_OLD_KUBECTL)", old.is_some()) {
        all.extend(old.map(|program| Kubectl { program, spdy: true }));
    }
    all
}

impl Kubectl {
    fn command(&self, cluster: &Cluster, args: &[&str]) -> Command {
        let mut command = cluster.command_of(&self.program);
        if self.spdy {
            command
                .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
                .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false");
        }
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, cluster: &Cluster, args: &[&str]) -> Running {
        let mut child = self.command(cluster, args).spawn().expect("kubectl starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, stdout }
    }

    /// Runs to its end with some input.
    fn run(&self, cluster: &Cluster, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(cluster, args).spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        // A kubectl that does not read its input closes it.
        let typing = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("kubectl ends");
        typing.join().expect("typing does not panic");
        output
    }
}

/// A kubectl that goes on until it is dropped.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether some process has this word among its arguments.
fn runs(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("there is /proc");
    processes.flatten().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|found| found == word.as_bytes())
    })
}

both_ways!(logs_are_shown_in_every_way, serve);

fn logs_are_shown_in_every_way(cluster: &Cluster) {
    cluster.until_node_ready();
    let mut talks = pod("talks", &shell("echo one; echo two >&2; sleep 1; echo three"));
    let mut other = talks["spec"]["containers"][0].clone();
    other["name"] = json!("other");
    other["command"] = json!(["echo", "from the other"]);
    talks["spec"]["containers"]
        .as_array_mut()
        .expect("a list")
        .push(other);
    talks["spec"]["restartPolicy"] = json!("Never");
    cluster.apply(&talks);
    cluster.until_pod("talks", |pod| {
        pod["status"]["containerStatuses"][0]["state"]
            .get("waiting")
            .is_none()
            && pod["status"].get("containerStatuses").is_some()
    });
    // Followed to the end of the container, whenever that is.
    let followed = cluster.kubectl(&["logs", "-f", "talks", "-c", "app"]);
    let mut lines: Vec<_> = followed.lines().collect();
    lines[..2].sort_unstable();
    assert_eq!(lines, ["one", "two", "three"]);
    assert_eq!(
        cluster.kubectl(&["logs", "talks", "-c", "app", "--tail=1"]),
        "three\n"
    );
    let stamped = cluster.kubectl(&["logs", "talks", "-c", "app", "--timestamps", "--tail=1"]);
    let (stamp, line) = stamped.split_once(' ').expect("a time and a line");
    assert!(stamp.ends_with('Z') && line == "three\n", "{stamped}");
    let recent = cluster.kubectl(&["logs", "talks", "-c", "app", "--since=1h"]);
    assert_eq!(recent.lines().count(), 3, "{recent}");
    let none = cluster.kubectl(&["logs", "talks", "-c", "app", "--since-time=2100-01-01T00:00:00Z"]);
    assert_eq!(none, "");
    let all = cluster.kubectl(&["logs", "talks", "--all-containers"]);
    assert!(
        all.contains("from the other\n") && all.contains("three\n"),
        "{all}"
    );
    for kubectl in kubectls() {
        let output = kubectl.run(cluster, &["logs", "talks", "-c", "app", "--limit-bytes=4"], b"");
        assert_eq!(output.stdout.len(), 4, "{kubectl:?}: {output:?}");
        let output = kubectl.run(cluster, &["logs", "talks", "-c", "app", "-p"], b"");
        let complaint = "previous terminated container \"app\" in pod \"talks\" not found";
        assert!(text(&output.stderr).contains(complaint), "{output:?}");
    }
}

both_ways!(the_log_of_the_life_before_is_kept, serve);

fn the_log_of_the_life_before_is_kept(cluster: &Cluster) {
    cluster.until_node_ready();
    let marker = cluster.path("begun");
    let script = format!(
        "if [ -e {0} ]; then echo second; exec sleep 1000000; fi; touch {0}; echo first; exit 1",
        marker.display()
    );
    cluster.apply(&pod("restarts", &shell(&script)));
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    cluster.until_pod("restarts", restarted);
    assert_eq!(cluster.kubectl(&["logs", "restarts", "--previous"]), "first\n");
    cluster.until("the second life's line", || {
        (cluster.kubectl(&["logs", "restarts"]) == "second\n").then_some(())
    });
}

both_ways!(commands_have_streams_terminals_and_exit_codes, serve);

fn commands_have_streams_terminals_and_exit_codes(cluster: &Cluster) {
    cluster.until_node_ready();
    cluster.apply(&pod("web", &json!({})));
    cluster.until_ready("web");
    let noise: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
    for kubectl in kubectls() {
        let script = "echo out; echo err >&2; exit 7";
        let output = kubectl.run(cluster, &["exec", "web", "--", "sh", "-c", script], b"");
        assert_eq!(output.status.code(), Some(7), "{kubectl:?}: {output:?}");
        assert_eq!(text(&output.stdout), "out\n");
        assert!(text(&output.stderr).starts_with("err\n"), "{output:?}");
        let output = kubectl.run(cluster, &["exec", "-i", "web", "--", "cat"], &noise);
        assert!(
            output.stdout == noise,
            "{kubectl:?}: {} bytes came back",
            output.stdout.len()
        );
        let output = kubectl.run(cluster, &["exec", "web", "--", "no-such-program"], b"");
        assert!(!output.status.success() && text(&output.stderr).contains("no-such-program"));
        in_a_terminal(cluster, &kubectl);
    }
}

/// A terminal that is 40 rows high, whose size has to arrive at the command.
fn in_a_terminal(cluster: &Cluster, kubectl: &Kubectl) {
    let script = "tty; until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; echo resized; exit 5";
    let plain = kubectl.command(cluster, &[]);
    let mut terminal = Command::new("script");
    terminal.args([
        "-qec",
        "stty rows 40 cols 100; exec \"$KUBECTL\" exec -it web -- sh -c \"$SCRIPT\"",
    ]);
    for (name, value) in plain.get_envs() {
        if let Some(value) = value {
            terminal.env(name, value);
        }
    }
    let output = terminal
        .arg("/dev/null")
        .env("KUBECTL", &kubectl.program)
        .env("SCRIPT", script)
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .output();
    if !pulselet_testing::requires("script, of bsdutils", output.is_ok()) {
        return;
    }
    let output = output.expect("just looked");
    let shown = text(&output.stdout);
    assert!(
        shown.contains("/dev/pts/") && shown.contains("resized"),
        "{kubectl:?}: {shown}"
    );
    assert_eq!(output.status.code(), Some(5), "{kubectl:?}: {shown}");
}

both_ways!(a_kubectl_that_is_killed_takes_its_command_along, serve);

fn a_kubectl_that_is_killed_takes_its_command_along(cluster: &Cluster) {
    cluster.until_node_ready();
    cluster.apply(&pod("web", &json!({})));
    cluster.until_ready("web");
    for (number, kubectl) in kubectls().into_iter().enumerate() {
        // Nobody else sleeps this long.
        let word = format!("{}.{number}", 1_000_000 + std::process::id());
        let script = format!("echo begun; exec sleep {word}");
        let mut running = kubectl.start(cluster, &["exec", "-i", "web", "--", "sh", "-c", &script]);
        assert_eq!(running.line(), "begun\n");
        cluster.until("the command", || runs(&word).then_some(()));
        running.kill();
        cluster.until("end of the command", || (!runs(&word)).then_some(()));
    }
}

both_ways!(attached_clients_speak_with_the_container, serve);

fn attached_clients_speak_with_the_container(cluster: &Cluster) {
    cluster.until_node_ready();
    let mut fields = shell("while read -r line; do echo \"heard $line\"; done");
    fields["stdin"] = json!(true);
    cluster.apply(&pod("listens", &fields));
    cluster.until_ready("listens");
    for kubectl in kubectls() {
        let mut running = kubectl.start(cluster, &["attach", "-i", "listens"]);
        let stdin = running.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"me\n").expect("it is typed");
        assert_eq!(running.line(), "heard me\n", "{kubectl:?}");
    }
    cluster.until("the log", || {
        let log = cluster.kubectl(&["logs", "listens"]);
        (log.lines().count() == kubectls().len()).then_some(())
    });
}

// The node has a certificate of its own making.
both_ways!(ports_are_forwarded, apart);

fn ports_are_forwarded(cluster: &Cluster) {
    cluster.until_node_ready();
    let server = "import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); \
                  print(s.server_port, flush=True); s.serve_forever()";
    cluster.apply(&pod("serves", &json!({"command": ["python3", "-c", server]})));
    cluster.until_ready("serves");
    let port = cluster.until("the port", || {
        let log = cluster.kubectl(&["logs", "serves"]);
        log.lines().next().map(str::to_owned)
    });
    for kubectl in kubectls() {
        let mut running = kubectl.start(cluster, &["port-forward", "pod/serves", &format!(":{port}")]);
        let line = running.line();
        let local = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let local: u16 = local.and_then(|port| port.parse().ok()).expect("a port");
        // Several at a time, over one connection of kubectl's.
        let streams: Vec<_> = (0..4)
            .map(|_| TcpStream::connect(("127.0.0.1", local)).expect("a connection"))
            .collect();
        for mut stream in streams {
            stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").expect("it is sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.0 200"), "{kubectl:?}: {answer}");
        }
    }
}

both_ways!(files_are_copied_both_ways, serve);

fn files_are_copied_both_ways(cluster: &Cluster) {
    cluster.until_node_ready();
    cluster.apply(&pod("web", &json!({})));
    cluster.until_ready("web");
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_be_bytes).collect();
    let (original, inside, back) = (
        cluster.path("original"),
        cluster.path("inside"),
        cluster.path("back"),
    );
    std::fs::write(&original, &content).expect("it is written");
    for kubectl in kubectls() {
        let remote = format!("web:{}", inside.display());
        for (from, to) in [
            (original.display().to_string(), remote.clone()),
            (remote, back.display().to_string()),
        ] {
            let output = kubectl.run(cluster, &["cp", &from, &to], b"");
            assert!(output.status.success(), "{kubectl:?}: {output:?}");
        }
        assert!(
            std::fs::read(&back).expect("it is there") == content,
            "{kubectl:?}"
        );
        std::fs::remove_file(&back).expect("it is there");
        std::fs::remove_file(&inside).expect("it is there");
    }
}
