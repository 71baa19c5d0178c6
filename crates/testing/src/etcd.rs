//! An etcd cluster of a test's own, whose members can be killed and started again.
//!
//! Each member has an address of its own on the loopback interface, so that its ports are free, and free again after it was
//! killed.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::requirement::{has_program, requires};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// How long a cluster may take to begin, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs until it is dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    directory: TempDir,
    members: Vec<EtcdMember>,
    tls: Option<EtcdFiles>,
}

/// The files of a cluster that speaks TLS with its clients.
#[derive(Debug, Clone)]
pub struct EtcdFiles {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug)]
struct EtcdMember {
    address: Ipv4Addr,
    child: Option<Child>,
}

impl EtcdCluster {
    /// Starts a cluster and waits until it takes requests; `None` if there is no etcd.
    ///
    /// # Panics
    /// If it does not begin.
    pub fn start(members: usize) -> Option<Self> {
        Self::start_on(&addresses(members), None)
    }

    /// Loopback addresses that nobody else uses, for [`Self::start_on`].
    pub fn addresses(members: usize) -> Vec<Ipv4Addr> {
        addresses(members)
    }

    /// As [`Self::start`], at these addresses. With files, clients have to come with a certificate of the same authority.
    ///
    /// # Panics
    /// If it does not begin.
    pub fn start_on(addresses: &[Ipv4Addr], tls: Option<EtcdFiles>) -> Option<Self> {
        if !requires("etcd (Debian: etcd-server)", has_program("etcd")) {
            return None;
        }
        let member = |address: &Ipv4Addr| EtcdMember {
            address: *address,
            child: None,
        };
        let mut cluster = Self {
            directory: TempDir::new().expect("a directory"),
            members: addresses.iter().map(member).collect(),
            tls,
        };
        for index in 0..addresses.len() {
            cluster.spawn(index);
        }
        for index in 0..addresses.len() {
            cluster.wait_for(index);
        }
        Some(cluster)
    }

    /// Where clients reach the members, as `etcd://` and their addresses.
    pub fn url(&self) -> String {
        let members: Vec<String> = (0..self.members.len())
            .map(|index| self.client_address(index).to_string())
            .collect();
        format!("etcd://{}", members.join(","))
    }

    /// Ends a member as a power cut would.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill().expect("it is ours");
            child.wait().expect("it has ended");
        }
    }

    /// Starts a member again that was killed, and does not wait for it.
    ///
    /// # Panics
    /// If there is no etcd any more.
    pub fn restart(&mut self, index: usize) {
        self.spawn(index);
    }

    /// Stops a member without ending it, or lets it go on.
    ///
    /// # Panics
    /// If it was killed.
    pub fn freeze(&self, index: usize, is_frozen: bool) {
        let child = self.members[index].child.as_ref().expect("it runs");
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let signal = if is_frozen {
            rustix::process::Signal::STOP
        } else {
            rustix::process::Signal::CONT
        };
        rustix::process::kill_process(pid.expect("a process id"), signal).expect("it is ours");
    }

    fn client_address(&self, index: usize) -> SocketAddr {
        (self.members[index].address, CLIENT_PORT).into()
    }

    fn spawn(&mut self, index: usize) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let address = self.members[index].address;
        let client = format!("{scheme}://{address}:{CLIENT_PORT}");
        let peer = |address: Ipv4Addr| format!("http://{address}:{PEER_PORT}");
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(index, member)| format!("m{index}={}", peer(member.address)))
            .collect();
        let log = self.directory.path().join(format!("m{index}.log"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log");
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{index}"), "--logger", "zap"])
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("m{index}")))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args(["--listen-peer-urls", &peer(address)])
            .args(["--initial-advertise-peer-urls", &peer(address)])
            .args([
                "--initial-cluster",
                &all.join(","),
                "--initial-cluster-state",
                "new",
            ])
            // A new leader within a second.
            .args(["--heartbeat-interval", "100", "--election-timeout", "1000"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        if let Some(tls) = &self.tls {
            command
                .arg("--client-cert-auth")
                .arg("--trusted-ca-file")
                .arg(&tls.authority)
                .arg("--cert-file")
                .arg(&tls.certificate)
                .arg("--key-file")
                .arg(&tls.key);
        }
        self.members[index].child = Some(command.spawn().expect("etcd starts"));
    }

    /// A member opens its port for clients when the cluster has a leader.
    fn wait_for(&mut self, index: usize) {
        let end = Instant::now() + START_TIMEOUT;
        let address = self.client_address(index);
        while TcpStream::connect(address).is_err() {
            let child = self.members[index].child.as_mut().expect("it was started");
            let has_ended = child.try_wait().expect("it is ours").is_some();
            let log = || std::fs::read_to_string(self.directory.path().join(format!("m{index}.log")));
            assert!(
                !has_ended && Instant::now() < end,
                "etcd does not begin: {:?}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }
}

/// Addresses of the loopback network that no other test has chosen, as far as chance can tell.
fn addresses(count: usize) -> Vec<Ipv4Addr> {
    let random = RandomState::new();
    let address = |index: usize| {
        let [_, a, b, c, ..] = random.hash_one(index).to_be_bytes();
        Ipv4Addr::new(127, a.clamp(1, 250), b, c.clamp(1, 250))
    };
    (0..count).map(address).collect()
}
