//! A server of its own for each test, in this process, on a port of the loopback interface.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pulselet_apiserver::{Config, NodeCertificate, Server};
use pulselet_controllers::{ControllerOptions, Controllers};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A running server, stopped when dropped.
pub(crate) struct TestServer {
    directory: Option<TempDir>,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) address: std::net::SocketAddr,
    /// For the endpoint of a node `n1` on this machine.
    pub(crate) node_certificate: NodeCertificate,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(configure: impl FnOnce(&mut Config)) -> Self {
        Self::start_in(TempDir::new().expect("a directory"), configure)
    }

    /// Starts on the data of an earlier server.
    pub(crate) fn start_in(directory: TempDir, configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(([127, 0, 0, 1], 0).into(), directory.path());
        configure(&mut config);
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let server = Server::bind(config).await.expect("the server starts");
                let certificate = server
                    .node_certifier("n1", &[[127, 0, 0, 1].into()])
                    .issue()
                    .expect("a certificate for a node");
                let facts = (server.kubeconfig().to_owned(), server.address(), certificate);
                server
                    .write_node_kubeconfig("n1")
                    .expect("a kubeconfig for a node");
                let controllers = Controllers::start(&server.client(), ControllerOptions::default());
                ready.send(facts).expect("the test waits");
                server
                    .run(async {
                        let _ = stopped.await;
                    })
                    .await;
                controllers.stop().await;
            });
        });
        let (kubeconfig, address, node_certificate) = is_ready.recv().expect("the server starts");
        Self {
            directory: Some(directory),
            kubeconfig,
            address,
            node_certificate,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Stops the server and gives its data back.
    pub(crate) fn stop(mut self) -> TempDir {
        self.end();
        self.directory.take().expect("a server has a directory")
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends in order");
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.as_ref().expect("a server has a directory").path()
    }

    /// Runs kubectl as the administrator. None if there is no kubectl.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Option<Answer> {
        self.kubectl_with(&self.kubeconfig, arguments, "")
    }

    pub(crate) fn kubectl_with(&self, kubeconfig: &Path, arguments: &[&str], input: &str) -> Option<Answer> {
        let mut child = match kubectl_command(self.path(), kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(error) => {
                let _ = pulselet_testing::requires(&format!("kubectl ({error})"), false);
                return None;
            }
        };
        if let Some(mut stdin) = child.stdin.take() {
            use std::io::Write;
            // A kubectl that does not read its input closes it.
            let _ = stdin.write_all(input.as_bytes());
        }
        Some(Answer::new(&child.wait_with_output().expect("kubectl ends")))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// kubectl with a home of its own, so that tests share no cache.
pub(crate) fn kubectl_command(home: &Path, kubeconfig: &Path) -> Command {
    let program = std::env::var_os("PULSELET_KUBECTL").unwrap_or_else(|| "kubectl".into());
    let mut command = Command::new(program);
    command
        .env("HOME", home)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy");
    command
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    fn new(output: &Output) -> Self {
        Self {
            ok: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The output of a command that must succeed.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert!(self.ok, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    /// The complaint of a command that must fail.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        assert!(!self.ok, "it succeeded: {}", self.stdout);
        self.stderr
    }
}
