//! Exec processes.

use std::{fs, time::Duration};

use pulselet_runtime::{Error, ExecOptions, ExecOutcome, ExecRequest, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{World, can_run, eventually, init_pid, on_bridge, shell};

#[tokio::test]
async fn a_command_sees_what_the_main_process_sees() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let mut config = world.config(
        "main",
        "echo secret > /only-here; echo up > /shared/up; exec sleep 1000",
    );
    config.working_dir = Some("/made/for/it".into());
    config.security.supplemental_groups = vec![4321];
    config.env.push(pulselet_runtime::EnvVar {
        name: "COLOUR".into(),
        value: "blue".into(),
    });
    let id = world.run_config(&config).await;
    world.file("up").await;
    let (outcome, output) = world
        .exec(
            &id,
            "cat /only-here; pwd; hostname; id -G; echo $COLOUR; readlink /proc/1/exe; exit 3",
        )
        .await;
    assert_eq!(outcome, ExecOutcome::Exited(3));
    assert_eq!(
        output,
        "secret\n/made/for/it\npod\n0 4321\nblue\n/usr/bin/sleep\n"
    );
    let main = init_pid(&world.container_dir(&id));
    let of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("reads");
    let (_, inside) = world
        .exec(
            &id,
            "sleep 1000 & echo $! ; readlink /proc/self/ns/pid /proc/self/ns/mnt",
        )
        .await;
    let namespaces: Vec<&str> = inside.lines().skip(1).collect();
    for (kind, seen) in ["pid", "mnt"].into_iter().zip(namespaces) {
        let expected = fs::read_link(format!("/proc/{main}/ns/{kind}")).expect("reads");
        assert_eq!(expected.to_string_lossy(), seen);
    }
    let left: Vec<String> = children_named("sleep", &of(&main));
    assert_eq!(
        left.len(),
        2,
        "what a command leaves behind is in the container's cgroup"
    );
    world.finish().await;
}

/// Processes of a name in a cgroup.
fn children_named(name: &str, cgroup: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("lists").flatten();
    processes
        .map(|entry| entry.path())
        .filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name))
        .filter(|path| fs::read_to_string(path.join("cgroup")).is_ok_and(|own| own == cgroup))
        .map(|path| path.display().to_string())
        .collect()
}

#[tokio::test]
async fn a_timeout_kills_and_reaps_everything_the_command_started() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    // The first process waits for nobody: what is not reaped stays as a zombie.
    let id = world.run("exec sleep 1000").await;
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(400)),
        ..shell("(setsid sh -c 'sleep 2001 & sleep 2002' &) ; setsid sleep 2003 & echo begun; sleep 2004")
    };
    let output = world.runtime.exec_sync(&id, &request).await.expect("runs");
    assert_eq!(
        (output.outcome, output.output.as_slice()),
        (ExecOutcome::TimedOut, &b"begun\n"[..])
    );
    let (_, processes) = world.exec(&id, "cat /proc/[0-9]*/stat | cut -d' ' -f2,3").await;
    let left: Vec<&str> = processes
        .lines()
        .filter(|line| line.contains("sleep") || line.ends_with('Z'))
        .collect();
    assert_eq!(left, ["(sleep) S"], "the init process alone, and no zombie");
    world.finish().await;
}

#[tokio::test]
async fn commands_that_cannot_run_say_so_and_exit_codes_are_kept() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let missing = ExecRequest {
        command: vec!["no-such-program".into()],
        ..shell("")
    };
    match world.runtime.exec_sync(&id, &missing).await {
        Err(Error::CannotRun { message }) => assert!(message.contains("not found in $PATH"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.exec(&id, "kill -9 $$").await.0, ExecOutcome::Exited(137));
    assert_eq!(world.exec(&id, "echo a; echo b >&2").await.1, "a\nb\n");
    world.finish().await;
}

#[tokio::test]
async fn a_command_has_a_terminal_if_it_wants_one() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let options = ExecOptions {
        command: vec![
            "sh".into(),
            "-c".into(),
            "read line; stty size >&2; tty; test -t 0 && echo got $line on $TERM".into(),
        ],
        tty: true,
        stdin: true,
        stdout: true,
        stderr: false,
        term: None,
    };
    let mut streams = world.runtime.exec(&id, &options).await.expect("opens");
    let resize = streams.resize.take().expect("has a terminal");
    let size = pulselet_runtime::TerminalSize {
        columns: 77,
        rows: 11,
    };
    resize.send(size).await.expect("is taken");
    streams
        .stdin
        .as_mut()
        .expect("has stdin")
        .write_all(b"hello\n")
        .await
        .expect("writes");
    let mut text = String::new();
    streams
        .stdout
        .take()
        .expect("has stdout")
        .read_to_string(&mut text)
        .await
        .expect("reads");
    assert!(
        text.contains("11 77") && text.contains("got hello on xterm"),
        "{text:?}"
    );
    assert!(
        text.contains("/dev/pts/"),
        "it has a name in the container: {text:?}"
    );
    assert_eq!(streams.exit.await.expect("is told").expect("ended"), 0);
    world.finish().await;
}

#[tokio::test]
async fn a_main_process_has_a_terminal_if_it_wants_one() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mut config = world.config(
        "main",
        "test -t 0 && echo $(tty) $TERM > /shared/up; exec sleep 1000",
    );
    config.tty = true;
    config.stdin = true;
    world.run_config(&config).await;
    assert_eq!(world.file("up").await, "/dev/console xterm");
    world.finish().await;
}

#[tokio::test]
async fn a_command_sees_the_end_of_what_is_typed() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let options = ExecOptions {
        command: vec!["cat".into()],
        tty: false,
        stdin: true,
        stdout: true,
        stderr: false,
        term: None,
    };
    let mut streams = world.runtime.exec(&id, &options).await.expect("opens");
    let mut stdin = streams.stdin.take().expect("has stdin");
    stdin.write_all(b"hello").await.expect("writes");
    drop(stdin);
    let mut text = String::new();
    let mut stdout = streams.stdout.take().expect("has stdout");
    stdout.read_to_string(&mut text).await.expect("reads");
    assert_eq!(text, "hello");
    assert_eq!(streams.exit.await.expect("is told").expect("ended"), 0);
    world.finish().await;
}

#[tokio::test]
async fn a_port_of_the_pods_loopback_can_be_reached() {
    if !can_run() {
        return;
    }
    let world = World::with(on_bridge()).await;
    let server = "import socket; s=socket.create_server(('127.0.0.1',7777)); open('/shared/up','w').write('up\\n'); c,_=s.accept(); c.sendall(c.recv(9).upper()); c.close()";
    let mut config = world.config("main", "");
    config.command = vec!["python3".into(), "-c".into(), server.into()];
    world.run_config(&config).await;
    world.file("up").await;
    let mut stream = world
        .runtime
        .port_forward(&world.sandbox, 7777)
        .await
        .expect("connects");
    stream.write_all(b"hello").await.expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    assert_eq!(answer, "HELLO");
    // A connection that comes just before the end is reset.
    eventually("the server is gone", async || {
        let error = world.runtime.port_forward(&world.sandbox, 7777).await.err()?;
        error.to_string().contains("refused").then_some(())
    })
    .await;
    world.finish().await;
}

/// Who may mount could put anything where the terminals of commands are made: a pipe that nobody writes to, a device, a link.
#[tokio::test]
async fn what_a_container_puts_in_the_place_of_its_terminals_is_not_opened() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    for (name, trap) in [
        ("pipe", "mkfifo /dev/pts/ptmx"),
        ("device", "mknod /dev/pts/ptmx c 1 1"),
        (
            "link",
            "mkdir /other && mount -t devpts -o newinstance,ptmxmode=666 none /other && ln -s /other/ptmx /dev/pts/ptmx",
        ),
    ] {
        let script =
            format!("mount -t tmpfs none /dev/pts && {trap} && echo set > /shared/{name}; exec sleep 1000");
        let mut config = world.config(name, &script);
        config.security.privileged = true;
        let id = world.run_config(&config).await;
        world.file(name).await;
        let options = ExecOptions {
            command: shell("test -t 0 && echo terminal; tty").command,
            tty: true,
            stdin: true,
            stdout: true,
            stderr: false,
            term: None,
        };
        let mut streams = world.runtime.exec(&id, &options).await.expect("opens");
        let mut text = String::new();
        let mut stdout = streams.stdout.take().expect("has stdout");
        stdout.read_to_string(&mut text).await.expect("reads");
        assert!(
            text.contains("terminal") && text.contains("not a tty"),
            "{name}: {text:?}"
        );
    }
    world.finish().await;
}
