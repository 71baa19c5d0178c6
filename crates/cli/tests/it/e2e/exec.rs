//! `pulselet exec`: a command in a container of a node, with its streams, its terminal and its exit code; and what a shell
//! completes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use super::harness::eventually;
use super::world::{Node, Runtime, World, e2e, processes};

/// A node with a pod `web` that has the containers `app` and, if asked for, `side`.
fn start(world: &World, containers: &[&str]) -> Node {
    let _ = std::fs::create_dir(world.path("manifests"));
    let containers: Vec<_> = containers.iter().map(|name| world.demo(name, &[])).collect();
    let written = world.manifest("web", &json!({"containers": containers}));
    std::fs::rename(written, world.path("manifests/web.json")).unwrap();
    let node = Node::start(world);
    eventually("containers", || {
        let pods = world.pods()?;
        let statuses = pods.first()?["status"]["containerStatuses"].as_array()?.clone();
        let running = |status: &serde_json::Value| !status["state"]["running"].is_null();
        (!statuses.is_empty() && statuses.iter().all(running)).then_some(())
    });
    node
}

fn stop(world: &World, node: Node) {
    let stopped = world.command("stop").arg("web").output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    drop(node);
    assert!(world.processes().is_empty());
}

fn exec(world: &World, args: &[&str], input: &[u8]) -> Output {
    let mut command = world.command("exec");
    let streams = command.args(args).stdin(Stdio::piped());
    let mut child = streams
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || {
        // A command that does not read it all has its reasons.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

e2e!(a_command_has_its_streams_and_passes_its_code_on, |world| {
    let node = start(world, &["app"]);
    let both = exec(
        world,
        &["web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"],
        b"",
    );
    assert_eq!(both.status.code(), Some(7), "{both:?}");
    assert_eq!(
        (text(&both.stdout), text(&both.stderr)),
        ("out\n".to_owned(), "err\n".to_owned())
    );
    // More than any buffer on the way holds.
    let much: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let echoed = exec(world, &["-i", "default/web", "-c", "app", "--", "cat"], &much);
    assert!(
        echoed.status.success() && echoed.stdout == much,
        "{:?}",
        text(&echoed.stderr)
    );
    // Without -i there is no input, and with -t but without a terminal there is none.
    let unread = exec(
        world,
        &["-t", "web", "--", "sh", "-c", "cat; test -t 1"],
        b"typed",
    );
    assert_eq!(unread.status.code(), Some(1), "{unread:?}");
    assert!(unread.stdout.is_empty() && text(&unread.stderr).contains("no terminal"));
    for (args, code, says) in [
        (&["nobody", "--", "true"][..], 1, "there is no pod default/nobody"),
        (&["web", "-c", "other", "--", "true"], 1, "no container \"other\""),
        (&["web", "--", "/no/such/program"], 1, "/no/such/program"),
        (&["web"], 2, "COMMAND"),
    ] {
        let refused = exec(world, args, b"");
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
        assert!(text(&refused.stderr).contains(says), "{refused:?}");
    }
    stop(world, node);
});

e2e!(one_of_several_containers_must_be_named, [Process], |world| {
    let node = start(world, &["app", "side"]);
    let unnamed = exec(world, &["web", "--", "true"], b"");
    assert_eq!(unnamed.status.code(), Some(1), "{unnamed:?}");
    assert!(
        text(&unnamed.stderr).contains("choose one of app, side"),
        "{unnamed:?}"
    );
    let named = exec(world, &["web", "-c", "side", "--", "true"], b"");
    assert!(named.status.success(), "{named:?}");
    stop(world, node);
});

// A containerd does not end a command whose client has left.
e2e!(
    a_client_that_is_interrupted_takes_its_command_along,
    [Process, Oci, OwnCri],
    |world| {
        let node = start(world, &["app"]);
        // A length that no other process on this machine sleeps.
        let nap = format!("98765.{}", std::process::id());
        let sleeps = || !processes(|line| line.starts_with(b"sleep\0") && contains(line, &nap)).is_empty();
        let mut client = world
            .command("exec")
            .args(["web", "--", "sleep", &nap])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("sleep", || sleeps().then_some(()));
        signal(&client, Signal::INT);
        assert_eq!(client.wait().unwrap().code(), Some(130));
        eventually("end of the sleep", || (!sleeps()).then_some(()));
        stop(world, node);
    }
);

fn contains(line: &[u8], text: &str) -> bool {
    line.windows(text.len()).any(|window| window == text.as_bytes())
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A terminal made for the test, and all that was shown on it.
struct Terminal {
    master: File,
    slave: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open(columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (sink, mut reader) = (Arc::clone(&shown), File::from(master.try_clone().unwrap()));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        let terminal = Self {
            master: File::from(master),
            slave,
            shown,
        };
        terminal.resize(columns);
        terminal
    }

    fn resize(&self, columns: u16) {
        let size = Winsize {
            ws_row: 30,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).unwrap();
    }

    fn stdio(&self) -> Stdio {
        Stdio::from(OwnedFd::from(self.slave.try_clone().unwrap()))
    }

    fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn until(&self, what: &str) {
        eventually(what, || {
            text(&self.shown.lock().unwrap()).contains(what).then_some(())
        });
    }

    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    }
}

e2e!(
    a_shell_has_a_terminal_with_this_ones_size,
    [Process, Oci, OwnCri],
    |world| {
        let node = start(world, &["app"]);
        let mut terminal = Terminal::open(111);
        let mut command = world.command("exec");
        let command = command.args(["-it", "web", "--", "sh"]).env("TERM", "vt220");
        let streams = command.stdin(terminal.stdio()).stdout(terminal.stdio());
        let mut client = streams.stderr(terminal.stdio()).spawn().unwrap();
        eventually("raw terminal", || (!terminal.echoes()).then_some(()));
        terminal.types("echo a$((1+1))b; until [ \"$(stty size)\" = \"30 111\" ]; do sleep 0.05; done; echo wide$((1+1))\n");
        terminal.until("a2b");
        // A client of CRI cannot pass on which terminal it has.
        let term = if world.runtime == Runtime::OwnCri {
            "xterm"
        } else {
            "vt220"
        };
        terminal.types("echo term$((1+1))=$TERM\n");
        terminal.until(&format!("term2={term}"));
        terminal.until("wide2");
        terminal.resize(77);
        signal(&client, Signal::WINCH);
        terminal.types("until [ \"$(stty size)\" = \"30 77\" ]; do sleep 0.05; done; echo narrow$((1+1))\n");
        terminal.until("narrow2");
        // The key is the command's: it ends the sleep, not this client.
        terminal.types("echo begins$((1+1)); sleep 1000\n");
        terminal.until("begins2");
        terminal.types("\x03");
        terminal.types("exit 5\n");
        assert_eq!(client.wait().unwrap().code(), Some(5));
        assert!(terminal.echoes(), "the terminal is put back");
        stop(world, node);
    }
);

e2e!(
    a_shell_completes_names_of_pods_and_containers,
    [Process],
    |world| {
        let node = start(world, &["app", "side"]);
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_pulselet"));
        let complete = |words: &str| {
            let script = format!(
                "PATH={}:$PATH; source <(pulselet completion bash); COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _clap_complete_pulselet pulselet \"${{COMP_WORDS[COMP_CWORD]}}\"; IFS=' '; echo \"${{COMPREPLY[*]}}\"",
                program.parent().unwrap().display()
            );
            let shell = std::process::Command::new("bash").args(["-c", &script]).output();
            text(&shell.unwrap().stdout).trim().to_owned()
        };
        let data = world.data();
        let data = data.display();
        for command in ["exec", "logs", "history", "restart", "stop", "start", "top"] {
            assert_eq!(
                complete(&format!("pulselet {command} --data-dir {data} w")),
                "web",
                "{command}"
            );
        }
        let containers = complete(&format!("pulselet exec --data-dir {data} web -c ''"));
        assert_eq!(containers, "app side");
        assert_eq!(complete("pulselet hist"), "history");
        // Without an agent there is nothing to offer, and nothing to complain about.
        assert_eq!(complete("pulselet exec --data-dir /nonexistent w"), "");
        stop(world, node);
    }
);
