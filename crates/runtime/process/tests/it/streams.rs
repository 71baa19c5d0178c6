//! Interactive commands, attaching, forwarded ports.

use pulselet_runtime::{AttachOptions, EnvVar, Error, ExecOptions, ExecStreams, Runtime, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{FOREVER, World, wait_until_gone};

fn interactive(script: &str, tty: bool) -> ExecOptions {
    let command = vec!["sh".into(), "-c".into(), script.into()];
    ExecOptions {
        command,
        tty,
        stdin: true,
        stdout: true,
        stderr: true,
        term: None,
    }
}

/// Reads all output; returns stdout, stderr and the exit code.
async fn read_all(streams: ExecStreams) -> (String, String, i32) {
    let ExecStreams {
        stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = streams;
    let (mut out, mut err) = (String::new(), String::new());
    let reading = async {
        if let Some(mut stream) = stdout {
            stream.read_to_string(&mut out).await.expect("reads");
        }
        if let Some(mut stream) = stderr {
            stream.read_to_string(&mut err).await.expect("reads");
        }
        exit.await.expect("an end").expect("a code")
    };
    let code = tokio::time::timeout(FOREVER, reading).await.expect("in time");
    drop((stdin, resize));
    (out, err, code)
}

#[tokio::test]
async fn a_command_reads_and_writes() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let mut streams = world
        .runtime
        .exec(&id, &interactive("cat; echo problem >&2; exit 4", false))
        .await
        .expect("runs");
    let mut stdin = streams.stdin.take().expect("asked for");
    stdin.write_all(b"hello\n").await.expect("writes");
    drop(stdin);
    assert_eq!(read_all(streams).await, ("hello\n".into(), "problem\n".into(), 4));
    world.finish().await;
}

#[tokio::test]
async fn a_lot_of_output_arrives_whole() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let streams = world
        .runtime
        .exec(&id, &interactive("head -c 2000000 /dev/zero | tr '\\0' x", false))
        .await;
    let (out, err, code) = read_all(streams.expect("runs")).await;
    assert_eq!((out.len(), err.as_str(), code), (2_000_000, "", 0));
    world.finish().await;
}

#[tokio::test]
async fn a_terminal_has_the_size_of_the_callers() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let script = "read x; test -t 0 && test -t 1 && stty size < /dev/tty";
    let mut streams = world
        .runtime
        .exec(&id, &interactive(script, true))
        .await
        .expect("runs");
    let resize = streams.resize.clone().expect("a terminal");
    resize
        .send(TerminalSize {
            columns: 93,
            rows: 31,
        })
        .await
        .expect("sends");
    let stdin = streams.stdin.as_mut().expect("asked for");
    // The size is passed on before what is typed after it was taken.
    while resize.capacity() < resize.max_capacity() {
        tokio::task::yield_now().await;
    }
    stdin.write_all(b"go\n").await.expect("writes");
    let (out, _, code) = read_all(streams).await;
    assert!(out.ends_with("31 93\r\n") && code == 0, "{out:?} {code}");
    world.finish().await;
}

#[tokio::test]
async fn a_terminal_has_a_kind() {
    let world = World::new().await;
    let plain = world.run("exec sleep 1000").await;
    let mut config = world.config("own", "exec sleep 1000");
    config.env.push(EnvVar {
        name: "TERM".into(),
        value: "dumb".into(),
    });
    let own = world.run_config(&config).await;
    for (id, tty, term, expected) in [
        (&plain, true, None, "xterm\r\n"),
        (&plain, true, Some("vt220"), "vt220\r\n"),
        (&plain, false, None, "\n"),
        (&own, true, Some("vt220"), "dumb\r\n"),
    ] {
        let mut options = interactive("echo $TERM", tty);
        options.term = term.map(str::to_owned);
        let streams = world.runtime.exec(id, &options).await.expect("runs");
        assert_eq!(read_all(streams).await.0, expected, "{term:?}");
    }
    let mut config = world.config("third", "echo $TERM > $T/term; exec sleep 1000");
    config.tty = true;
    world.run_config(&config).await;
    assert_eq!(world.file("term").await, "xterm");
    world.finish().await;
}

#[tokio::test]
async fn a_command_ends_when_its_caller_leaves() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let streams = world
        .runtime
        .exec(&id, &interactive("echo $$ > $T/pid; exec sleep 1000", false))
        .await
        .expect("runs");
    let pid = world.file("pid").await;
    drop(streams);
    wait_until_gone(&pid).await;
    world.finish().await;
}

#[tokio::test]
async fn what_cannot_be_run_is_an_error_at_once() {
    let world = World::new().await;
    let id = world.run("exec sleep 1000").await;
    let options = ExecOptions {
        command: vec!["/no/such".into()],
        ..interactive("", false)
    };
    let error = world
        .runtime
        .exec(&id, &options)
        .await
        .expect_err("it is not there");
    assert!(matches!(error, Error::CannotRun { .. }), "{error:?}");
    world.finish().await;
}

#[tokio::test]
async fn attaching_reaches_the_main_process() {
    let world = World::new().await;
    let mut config = world.config("main", "while read line; do echo \"got $line\"; done; exit 8");
    (config.stdin, config.stdin_once) = (true, true);
    let id = world.run_config(&config).await;
    let options = AttachOptions {
        tty: false,
        stdin: true,
        stdout: true,
        stderr: true,
    };
    let mut streams = world.runtime.attach(&id, &options).await.expect("attaches");
    let mut stdin = streams.stdin.take().expect("asked for");
    stdin.write_all(b"one\ntwo\n").await.expect("writes");
    drop(stdin);
    assert_eq!(
        read_all(streams).await,
        ("got one\ngot two\n".into(), String::new(), 8)
    );
    world.finish().await;
}

#[tokio::test]
async fn the_main_process_can_have_a_terminal() {
    let world = World::new().await;
    let mut config = world.config("main", "read line; test -t 1 && echo \"got $line\"");
    (config.stdin, config.tty) = (true, true);
    let id = world.run_config(&config).await;
    let options = AttachOptions {
        tty: true,
        stdin: true,
        stdout: true,
        stderr: false,
    };
    let mut streams = world.runtime.attach(&id, &options).await.expect("attaches");
    let stdin = streams.stdin.as_mut().expect("asked for");
    stdin.write_all(b"hello\n").await.expect("writes");
    let (out, _, code) = read_all(streams).await;
    assert!(out.ends_with("got hello\r\n") && code == 0, "{out:?} {code}");
    let log = std::fs::read_to_string(world.path("logs/main/0.log")).expect("a log");
    assert!(log.ends_with(" stdout F got hello\r\n"), "{log:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_port_is_forwarded() {
    let world = World::new().await;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("listens");
    let port = listener.local_addr().expect("an address").port();
    let mut stream = world
        .runtime
        .port_forward(&world.sandbox, port)
        .await
        .expect("connects");
    let (mut accepted, _) = listener.accept().await.expect("accepts");
    stream.write_all(b"ping").await.expect("writes");
    let mut received = [0; 4];
    accepted.read_exact(&mut received).await.expect("reads");
    assert_eq!(&received, b"ping");
    world.finish().await;
}
