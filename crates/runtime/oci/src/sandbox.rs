//! What the containers of a pod share: namespaces pinned by mounts, /dev/shm, and the files that name the pod.
//!
//! ```text
//! sandboxes/<id>/net, ipc, uts, pid, user   the pins
//!                proc/                      the files of the pinned process namespace
//!                shm/                       a file system in memory
//!                hosts, hostname, resolv.conf
//! ```
//! No process keeps them alive (but where a pod shares its processes, which need a first one). Making and taking down
//! may be cut off anywhere and done again.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    time::Duration,
};

use pulselet_runtime::{Dns, IdRange, InterfaceStats, PidNamespace, SandboxConfig, SandboxId};
use pulselet_shim::record::{self, RecordError};
use pulselet_shim_client::{SANDBOX_FILE, SandboxRecord};
use pulselet_sys::{NamespaceHolder, unshare_namespaces};
use rustix::{
    fs::statfs,
    mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount},
    system::sethostname,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use crate::network::{self, Forward, Network, NetworkError, PodAddresses};

pub(crate) const NETWORK: &str = "net";
pub(crate) const IPC: &str = "ipc";
pub(crate) const UTS: &str = "uts";
pub(crate) const PROCESSES: &str = "pid";
pub(crate) const USERS: &str = "user";
pub(crate) const PROC: &str = "proc";
pub(crate) const SHM: &str = "shm";
pub(crate) const HOSTS: &str = "hosts";
pub(crate) const HOSTNAME: &str = "hostname";
pub(crate) const RESOLV_CONF: &str = "resolv.conf";

/// Everything that may be mounted in a sandbox's directory.
const MOUNTS: [&str; 7] = [NETWORK, IPC, UTS, PROC, PROCESSES, USERS, SHM];

/// What the kernel says of a file that is a namespace.
pub(crate) const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

/// Settings below /proc/sys that belong to a pod's own namespaces and cannot harm the machine: Kubernetes' safe set and
/// what else is namespaced.
const NAMESPACED_SYSCTLS: [&str; 5] = ["net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// Mounts of one path on top of each other that are taken away; a killed agent leaves one.
const MAX_STACKED: usize = 8;

/// Bytes that are read of the machine's own hosts file, host name or resolver settings: far more than they have.
const MAX_HOST_FILE: u64 = 1 << 20;

/// A program in the pod that does not accept within this is not listening.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot make namespaces: {0}")]
    Unshare(io::Error),
    #[error("cannot make a user namespace: {0}")]
    UserNamespace(io::Error),
    #[error("cannot pin a namespace at {path}: {source}", path = path.display())]
    Pin { path: PathBuf, source: io::Error },
    #[error("cannot set the host name {name:?}: {source}")]
    Hostname { name: String, source: io::Error },
    #[error("sysctl {name:?} is not one that a pod may set")]
    ForbiddenSysctl { name: String },
    #[error("cannot set sysctl {name} to {value:?}: {source}")]
    Sysctl {
        name: String,
        value: String,
        source: io::Error,
    },
    #[error("cannot write {path}: {source}", path = path.display())]
    WriteFile { path: PathBuf, source: io::Error },
    #[error("cannot mount {path}: {source}", path = path.display())]
    MountShm { path: PathBuf, source: io::Error },
    #[error("cannot unmount {path}: {source}", path = path.display())]
    Unmount { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// A sandbox to be made.
pub(crate) struct Plan<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) dir: &'a Path,
    pub(crate) config: &'a SandboxConfig,
    /// None where the sandbox is not on the bridge.
    pub(crate) addresses: Option<PodAddresses>,
    /// Of a pod that has users of its own: all its namespaces belong to theirs.
    pub(crate) user_ids: Option<IdRange>,
    pub(crate) network: &'a Network,
}

impl Plan<'_> {
    /// Makes everything. May block, for milliseconds.
    pub(crate) fn make(&self) -> Result<(), SandboxError> {
        check_sysctls(self.config)?;
        if let Some(addresses) = self.addresses {
            self.network
                .register(self.id, forwards(self.config, addresses.v4))?;
        }
        self.write_files()?;
        if !self.config.namespaces.host_ipc {
            mount_shm(&self.dir.join(SHM))?;
        }
        // Namespaces are those of a thread; this one must keep its own.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("sandbox".into())
                .spawn_scoped(scope, || self.make_namespaces())
                .map_err(SandboxError::Thread)?;
            thread.join().expect("making namespaces does not panic")
        })
    }

    fn make_namespaces(&self) -> Result<(), SandboxError> {
        let own = &self.config.namespaces;
        let mut flags = UnshareFlags::empty();
        let mut pins = Vec::new();
        if !own.host_network {
            flags |= UnshareFlags::NEWNET | UnshareFlags::NEWUTS;
            pins.extend([NETWORK, UTS]);
        }
        if !own.host_ipc {
            flags |= UnshareFlags::NEWIPC;
            pins.push(IPC);
        }
        let host = network::Socket::open()?;
        match self.user_ids {
            Some(ids) => self.enter_namespaces_with_users(ids, flags)?,
            None => unshare_namespaces(flags).map_err(SandboxError::Unshare)?,
        }
        for name in pins {
            pin(&self.dir.join(name), &format!("/proc/thread-self/ns/{name}"))?;
        }
        if !own.host_network {
            self.name_host()?;
            let namespace = File::open(self.dir.join(NETWORK)).map_err(|source| SandboxError::Pin {
                path: self.dir.join(NETWORK),
                source,
            })?;
            let inside = network::Socket::open()?;
            inside.set_up_loopback()?;
            if let Some(addresses) = self.addresses {
                let namespace = namespace.as_fd();
                self.network
                    .connect(&host, &inside, self.id, namespace, addresses)?;
            }
        }
        set_sysctls(self.config)
    }

    /// Enters new namespaces that belong to a new user namespace, which is pinned. This thread stays out of that one: it
    /// has work to do on the host.
    fn enter_namespaces_with_users(&self, ids: IdRange, flags: UnshareFlags) -> Result<(), SandboxError> {
        let holder =
            NamespaceHolder::start(ids.first, ids.count, flags).map_err(SandboxError::UserNamespace)?;
        let users = holder.namespace(USERS).map_err(SandboxError::UserNamespace)?;
        pin(
            &self.dir.join(USERS),
            &format!("/proc/self/fd/{}", users.as_raw_fd()),
        )?;
        for (flag, name, kind) in [
            (UnshareFlags::NEWNET, NETWORK, LinkNameSpaceType::Network),
            (
                UnshareFlags::NEWUTS,
                UTS,
                LinkNameSpaceType::HostNameAndNISDomainName,
            ),
            (
                UnshareFlags::NEWIPC,
                IPC,
                LinkNameSpaceType::InterProcessCommunication,
            ),
        ] {
            if flags.contains(flag) {
                let namespace = holder.namespace(name).map_err(SandboxError::UserNamespace)?;
                move_into_link_name_space(namespace.as_fd(), Some(kind))
                    .map_err(|errno| SandboxError::UserNamespace(errno.into()))?;
            }
        }
        Ok(())
    }

    fn name_host(&self) -> Result<(), SandboxError> {
        let name = &self.config.hostname;
        sethostname(name.as_bytes()).map_err(|errno| SandboxError::Hostname {
            name: name.clone(),
            source: errno.into(),
        })
    }

    fn write_files(&self) -> Result<(), SandboxError> {
        let addresses = self.addresses.map(PodAddresses::list).unwrap_or_default();
        write_hosts(self.dir, self.config, &addresses)?;
        let hostname = if self.config.namespaces.host_network {
            read_host("/etc/hostname")
        } else {
            format!("{}\n", self.config.hostname)
        };
        write_file(self.dir, HOSTNAME, &hostname)?;
        let resolver = match &self.config.dns {
            Some(dns) => resolv_conf(dns),
            None => read_host("/etc/resolv.conf"),
        };
        write_file(self.dir, RESOLV_CONF, &resolver)
    }
}

/// The pod's own names, for containers whose mounts have no file of the node for that.
pub(crate) fn write_hosts(
    dir: &Path,
    config: &SandboxConfig,
    addresses: &[IpAddr],
) -> Result<(), SandboxError> {
    let text = if config.namespaces.host_network {
        read_host("/etc/hosts")
    } else {
        hosts(&config.hostname, addresses)
    };
    write_file(dir, HOSTS, &text)
}

/// A file of the machine; one that cannot be read says nothing.
fn read_host(path: &str) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_HOST_FILE).read_to_string(&mut text));
    read.map(|_| text).unwrap_or_default()
}

fn write_file(dir: &Path, name: &str, text: &str) -> Result<(), SandboxError> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|source| SandboxError::WriteFile { path, source })
}

/// The host's ports that lead to the pod.
pub(crate) fn forwards(config: &SandboxConfig, pod: Ipv4Addr) -> Vec<Forward> {
    let mappings = config.port_mappings.iter().cloned();
    mappings.map(|mapping| Forward { mapping, pod }).collect()
}

/// The namespaces of a sandbox that are pinned, by the names of their pins.
fn pins(config: &SandboxConfig) -> Vec<&'static str> {
    let own = &config.namespaces;
    let mut pins = Vec::new();
    if !own.host_network {
        pins.extend([NETWORK, UTS]);
    }
    if !own.host_ipc {
        pins.push(IPC);
    }
    if own.pid == PidNamespace::Pod {
        pins.push(PROCESSES);
    }
    if own.own_users {
        pins.push(USERS);
    }
    pins
}

/// The pins behind which there is no namespace any more: somebody has unmounted them, or all mounts went with the
/// container in which the agent runs.
pub(crate) fn lost_pins(dir: &Path, config: &SandboxConfig) -> Vec<&'static str> {
    let is_pinned = |name: &&str| statfs(dir.join(name)).is_ok_and(|it| it.f_type == NSFS_MAGIC);
    pins(config).into_iter().filter(|name| !is_pinned(name)).collect()
}

/// Pins namespaces again that a process of the pod still has.
pub(crate) fn pin_again(dir: &Path, pins: &[&str], process: i32) -> Result<(), SandboxError> {
    for name in pins {
        let path = dir.join(name);
        let source = format!("/proc/{process}/ns/{name}");
        let mounted = File::create(&path).and_then(|_| Ok(mount_bind(source, &path)?));
        mounted.map_err(|source| SandboxError::Pin { path, source })?;
    }
    Ok(())
}

/// Lets go of everything that is mounted.
pub(crate) fn unmount_all(dir: &Path) -> Result<(), SandboxError> {
    MOUNTS.iter().try_for_each(|name| unmount_stack(&dir.join(name)))
}

fn unmount_stack(path: &Path) -> Result<(), SandboxError> {
    for _ in 0..MAX_STACKED {
        match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or nothing is there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => break,
            Err(errno) => {
                return Err(SandboxError::Unmount {
                    path: path.to_owned(),
                    source: errno.into(),
                });
            }
        }
    }
    Ok(())
}

/// Below a runtime's root: lets go of what is mounted in directories that are no sandboxes (any more), or whose record is
/// damaged, so that they can be removed.
pub(crate) fn unmount_forgotten(root: &Path) -> Result<(), SandboxError> {
    for entry in fs::read_dir(root.join("sandboxes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let record = record::read::<SandboxRecord>(&entry.path(), SANDBOX_FILE);
        if matches!(record, Ok(None) | Err(RecordError::Parse { .. })) {
            unmount_all(&entry.path())?;
        }
    }
    Ok(())
}

/// Connects to a port on the pod's loopback address, of IPv4 or else of IPv6.
pub(crate) fn connect(dir: &Path, host_network: bool, port: u16) -> io::Result<TcpStream> {
    let [v4, v6] = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    let dial = || {
        if !host_network {
            let namespace = File::open(dir.join(NETWORK))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        let stream = match TcpStream::connect_timeout(&v4, CONNECT_PATIENCE) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                TcpStream::connect_timeout(&v6, CONNECT_PATIENCE).map_err(|_| error)?
            }
            connected => connected?,
        };
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    // In a thread of its own, because its namespace changes; a socket stays where it was made.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("port-forward".into())
            .spawn_scoped(scope, dial)?;
        thread.join().expect("connecting does not panic")
    })
}

/// What went through the pod's interfaces, but for the loopback one.
pub(crate) fn interfaces(dir: &Path) -> io::Result<Vec<InterfaceStats>> {
    let read = || {
        let namespace = File::open(dir.join(NETWORK))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        fs::read_to_string("/proc/thread-self/net/dev")
    };
    let text = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("interfaces".into())
            .spawn_scoped(scope, read)?;
        thread.join().expect("reading counters does not panic")
    })?;
    Ok(text.lines().filter_map(interface).collect())
}

/// A line of `net/dev`: eight numbers of what came, eight of what went. The headings have no colon.
fn interface(line: &str) -> Option<InterfaceStats> {
    let (name, numbers) = line.split_once(':')?;
    let numbers: Vec<u64> = numbers
        .split_ascii_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let name = name.trim();
    (name != "lo").then_some(())?;
    Some(InterfaceStats {
        name: name.to_owned(),
        received_bytes: *numbers.first()?,
        receive_errors: *numbers.get(2)?,
        sent_bytes: *numbers.get(8)?,
        send_errors: *numbers.get(10)?,
    })
}

/// A namespace lives as long as its file is mounted somewhere.
fn pin(path: &Path, namespace: &str) -> Result<(), SandboxError> {
    let failed = |source: io::Error| SandboxError::Pin {
        path: path.to_owned(),
        source,
    };
    File::create(path).map_err(failed)?;
    mount_bind(namespace, path).map_err(|errno| failed(errno.into()))
}

fn mount_shm(path: &Path) -> Result<(), SandboxError> {
    let failed = |source: io::Error| SandboxError::MountShm {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(path).map_err(failed)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", path, "tmpfs", flags, Some(c"mode=1777,size=65536k")).map_err(|errno| failed(errno.into()))
}

fn check_sysctls(config: &SandboxConfig) -> Result<(), SandboxError> {
    let allowed = |name: &str| {
        let dotted = name.replace('/', ".");
        let group = NAMESPACED_SYSCTLS
            .iter()
            .find(|group| dotted.starts_with(**group));
        let namespaces = &config.namespaces;
        let own = match group {
            Some(&"net.") => !namespaces.host_network,
            Some(_) => !namespaces.host_ipc,
            None => false,
        };
        own && !dotted.split('.').any(str::is_empty)
    };
    match config.sysctls.keys().find(|name| !allowed(name)) {
        Some(name) => Err(SandboxError::ForbiddenSysctl { name: name.clone() }),
        None => Ok(()),
    }
}

/// In the namespaces of the calling thread.
fn set_sysctls(config: &SandboxConfig) -> Result<(), SandboxError> {
    for (name, value) in &config.sysctls {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        fs::write(path, value).map_err(|source| SandboxError::Sysctl {
            name: name.clone(),
            value: value.clone(),
            source,
        })?;
    }
    Ok(())
}

fn hosts(name: &str, addresses: &[IpAddr]) -> String {
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    text.extend(addresses.iter().map(|address| format!("{address}\t{name}\n")));
    text
}

fn resolv_conf(dns: &Dns) -> String {
    let mut lines = Vec::new();
    if !dns.searches.is_empty() {
        lines.push(format!("search {}", dns.searches.join(" ")));
    }
    lines.extend(dns.servers.iter().map(|server| format!("nameserver {server}")));
    if !dns.options.is_empty() {
        lines.push(format!("options {}", dns.options.join(" ")));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_as_the_kernel_writes_them() {
        let line = "  eth0: 1500 10 1 0 0 0 0 0 2500 20 3 0 0 0 0 0";
        let stats = interface(line).expect("has counters");
        assert_eq!((stats.name.as_str(), stats.received_bytes), ("eth0", 1500));
        assert_eq!(
            (stats.receive_errors, stats.sent_bytes, stats.send_errors),
            (1, 2500, 3)
        );
        for other in [
            "Inter-|   Receive  |  Transmit",
            "lo: 1 1 0 0 0 0 0 0 1 1 0 0",
            "eth1: x",
            "",
        ] {
            assert_eq!(interface(other), None, "{other}");
        }
    }

    #[test]
    fn resolver_settings_are_written_as_resolvers_read_them() {
        let dns = Dns {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.local".into(), "local".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(
            resolv_conf(&dns),
            "search a.local local\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n"
        );
        assert_eq!(resolv_conf(&Dns::default()), "");
    }

    #[test]
    fn only_what_is_the_pods_own_may_be_set() {
        let check = |name: &str, host_network| {
            let mut config = SandboxConfig::default();
            config.namespaces.host_network = host_network;
            config.sysctls.insert(name.into(), "1".into());
            check_sysctls(&config).is_ok()
        };
        assert!(check("net.ipv4.ip_unprivileged_port_start", false));
        assert!(check("kernel.shm_rmid_forced", true));
        for (name, host_network) in [
            ("net.ipv4.ip_forward", true),
            ("kernel.panic", false),
            ("vm.swappiness", false),
            ("net...kernel.panic", false),
            ("net./../kernel/panic", false),
        ] {
            assert!(!check(name, host_network), "{name}");
        }
    }
}
