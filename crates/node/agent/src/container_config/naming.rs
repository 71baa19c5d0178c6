//! What a pod is called and how it finds others: its host name, its hosts file, its resolver.
//!
//! The hosts file is the pod's, one for all its containers, and is put over `/etc/hosts` of each that mounts nothing
//! there itself. It is written when a container is made: the pod's addresses are known by then.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use pulselet_model::openapi::api::core::v1::PodDNSConfig;
use pulselet_model::{Container, Pod};
use pulselet_plan::duties::ClusterDns;
use pulselet_runtime::{Dns, Mount, Propagation};
use rustix::fs::OFlags;

use super::Context;
use super::error::ConfigError;

/// Longest host name, in bytes, as Linux has it for a label.
const MAX_HOSTNAME: usize = 63;
/// Names with fewer dots are looked for in the search domains first, so that those of services are found.
const CLUSTER_OPTION: &str = "ndots:5";
/// Name servers that resolvers look at.
const MAX_SERVERS: usize = 3;
/// Search domains, and the bytes of all of them with what separates them, as Kubernetes admits them.
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_TEXT: usize = 2_048;

/// Bytes that are read of the machine's own hosts file or resolver settings: far more than they have.
const MAX_MACHINE_FILE: u64 = 1 << 20;

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd's resolver keeps the servers that it asks itself.
const RESOLVED_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// The name that a pod's containers see; empty with the host's network.
pub(super) fn hostname(pod: &Pod, cluster: &ClusterDns) -> String {
    let spec = &pod.spec;
    if spec.host_network {
        return String::new();
    }
    let name = short_name(pod);
    match domain(pod, cluster) {
        Some(domain) if spec.set_hostname_as_fqdn == Some(true) => format!("{name}.{domain}"),
        Some(_) | None => name,
    }
}

fn short_name(pod: &Pod) -> String {
    let spec = &pod.spec;
    let name = match (&spec.hostname_override, spec.hostname.as_str()) {
        (Some(name), _) => name,
        (None, "") => pod.name(),
        (None, name) => name,
    };
    let cut = name.get(..MAX_HOSTNAME).unwrap_or(name);
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// What follows the pod's name where it has a subdomain.
fn domain(pod: &Pod, cluster: &ClusterDns) -> Option<String> {
    let subdomain = &pod.spec.subdomain;
    let overridden = pod.spec.hostname_override.is_some();
    (!subdomain.is_empty() && !overridden)
        .then(|| format!("{subdomain}.{}.svc.{}", pod.namespace(), cluster.domain))
}

/// The mount of the pod's hosts file, written; none where the container has its own.
pub(super) fn hosts_mount(context: Context<'_>, container: &Container) -> Result<Option<Mount>, ConfigError> {
    let own = |path: &str| Path::new(path) == Path::new(HOSTS);
    if container.volume_mounts.iter().any(|mount| own(&mount.mount_path)) {
        return Ok(None);
    }
    let downward = context.downward;
    let text = hosts(downward.pod, context.dns, downward.pod_ips, &read(HOSTS));
    let path = context.layout.hosts(downward.uid);
    write_if_changed(&path, &text).map_err(|source| ConfigError::Prepare {
        path: path.clone(),
        source,
    })?;
    Ok(Some(Mount {
        volume: String::new(),
        container_path: PathBuf::from(HOSTS),
        host_path: path,
        image: None,
        sub_path: None,
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }))
}

/// In place, because running containers have the file mounted; not at all if it is right, because they may be reading.
/// Containers can write it too: no more of it is read than it should have, and nothing but a file is read or written.
fn write_if_changed(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(i32::try_from(flags).map_err(io::Error::other)?)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if metadata.len() == text.len() as u64 && read_up_to(&mut file, metadata.len())? == text.as_bytes() {
        return Ok(());
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// For a fuzzer: whatever was in the file, it says what it should afterwards.
pub(crate) fn fuzz_hosts_file(path: &Path) {
    let text = "127.0.0.1\tlocalhost\n";
    if write_if_changed(path, text).is_ok() {
        assert_eq!(fs::read(path).ok().as_deref(), Some(text.as_bytes()));
    }
}

fn read_up_to(file: &mut File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first line shows scripts and tests whose file it is: it is upstream's.
fn hosts(pod: &Pod, cluster: &ClusterDns, addresses: &[IpAddr], of_host: &str) -> String {
    let mut text = if pod.spec.host_network {
        format!("# Kubernetes-managed hosts file (host network).\n{of_host}")
    } else {
        let mut text = "# Kubernetes-managed hosts file.\n\
            127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\n\
            fe00::0\tip6-localnet\n\
            fe00::0\tip6-mcastprefix\n\
            fe00::1\tip6-allnodes\n\
            fe00::2\tip6-allrouters\n"
            .to_owned();
        let name = short_name(pod);
        let full_name = domain(pod, cluster).map(|domain| format!("{name}.{domain}\t"));
        for address in addresses {
            let full_name = full_name.as_deref().unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{address}\t{full_name}{name}");
        }
        text
    };
    if !pod.spec.host_aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in &pod.spec.host_aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
    }
    text
}

/// The resolver of a pod: its cluster's, the machine's own or none, as its policy says, and what its `dnsConfig` adds.
pub(super) fn dns(pod: &Pod, cluster: &ClusterDns) -> Dns {
    let base = match Resolver::of(pod, cluster) {
        Resolver::None => Dns::default(),
        Resolver::Machine => machine_dns(pod.spec.host_network),
        Resolver::Cluster => cluster_dns(pod, cluster, &machine_dns(pod.spec.host_network).searches),
    };
    with_config(base, pod)
}

/// Whose resolver a pod begins with.
#[derive(Debug, PartialEq, Eq)]
enum Resolver {
    None,
    Machine,
    Cluster,
}

impl Resolver {
    /// Without a resolver of the cluster the machine's is used, as on a kubelet that knows none. On the machine's network it
    /// is too, unless the policy says that the cluster's is meant there as well.
    fn of(pod: &Pod, cluster: &ClusterDns) -> Self {
        let wants_cluster = match pod.spec.dns_policy.as_str() {
            "None" => return Self::None,
            "Default" => false,
            "ClusterFirstWithHostNet" => true,
            _ => !pod.spec.host_network,
        };
        if wants_cluster && !cluster.servers.is_empty() {
            Self::Cluster
        } else {
            Self::Machine
        }
    }
}

/// Services of the pod's own namespace come first, then those of others, then whatever the machine looks for.
fn cluster_dns(pod: &Pod, cluster: &ClusterDns, of_machine: &[String]) -> Dns {
    let domain = &cluster.domain;
    let mut searches = vec![
        format!("{}.svc.{domain}", pod.namespace()),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    add_missing(&mut searches, Some(of_machine));
    Dns {
        servers: cluster.servers.iter().map(ToString::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTION.to_owned()],
    }
}

fn machine_dns(host_network: bool) -> Dns {
    let dns = parse(&read(RESOLV_CONF));
    // A resolver on the machine's loopback address cannot be reached from a network of its own.
    let is_local = |server: &String| server.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !host_network && dns.servers.iter().all(is_local) {
        let behind = parse(&read(RESOLVED_CONF));
        if !behind.servers.is_empty() {
            return behind;
        }
    }
    dns
}

fn with_config(dns: Dns, pod: &Pod) -> Dns {
    let mut dns = match &pod.spec.dns_config {
        Some(config) => added(dns, config),
        None => dns,
    };
    dns.servers.truncate(MAX_SERVERS);
    dns.searches.truncate(MAX_SEARCHES);
    while dns.searches.join(" ").len() > MAX_SEARCH_TEXT {
        dns.searches.pop();
    }
    dns
}

fn added(mut dns: Dns, config: &PodDNSConfig) -> Dns {
    add_missing(&mut dns.servers, config.nameservers.as_deref());
    add_missing(&mut dns.searches, config.searches.as_deref());
    for option in config.options.iter().flatten() {
        let Some(name) = &option.name else {
            continue;
        };
        let of_same_name = |text: &String| text.split(':').next() == Some(name.as_str());
        dns.options.retain(|text| !of_same_name(text));
        dns.options.push(match &option.value {
            Some(value) => format!("{name}:{value}"),
            None => name.clone(),
        });
    }
    dns
}

fn add_missing(list: &mut Vec<String>, more: Option<&[String]>) {
    for text in more.unwrap_or_default() {
        if !list.contains(text) {
            list.push(text.clone());
        }
    }
}

/// A file of the machine; one that cannot be read says nothing.
fn read(path: &str) -> String {
    let bytes = File::open(path).and_then(|mut file| read_up_to(&mut file, MAX_MACHINE_FILE));
    String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
}

/// Of equal keywords but `nameserver` the last counts, as for resolvers.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            Some("search") => dns.searches = words.collect(),
            Some("options") => dns.options = words.collect(),
            // Comments and what no pod can use.
            Some(_) | None => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "app"}]);
        let pod = json!({"metadata": {"name": "web-1", "namespace": "shop"}, "spec": spec});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn the_host_name_is_the_pods_or_what_it_asks_for() {
        let long = "x".repeat(62) + "-y";
        for (spec, name) in [
            (json!({}), "web-1"),
            (json!({"hostname": "h"}), "h"),
            (json!({"hostname": long}), &*"x".repeat(62)),
            (json!({"hostNetwork": true}), ""),
            (json!({"subdomain": "s"}), "web-1"),
            (
                json!({"subdomain": "s", "setHostnameAsFQDN": true}),
                "web-1.s.shop.svc.cluster.local",
            ),
            (json!({"setHostnameAsFQDN": true}), "web-1"),
        ] {
            assert_eq!(hostname(&pod(&spec), &ClusterDns::default()), name, "{spec}");
        }
    }

    #[test]
    fn the_hosts_file_has_addresses_names_and_aliases() {
        let aliases = json!([{"ip": "10.9.9.9", "hostnames": ["db", "db.local"]}]);
        let addresses: Vec<IpAddr> = vec![[10, 1, 2, 3].into(), "fd00::3".parse().unwrap()];
        let own = pod(&json!({"hostname": "h", "subdomain": "s", "hostAliases": aliases}));
        let cluster = ClusterDns::default();
        let text = hosts(&own, &cluster, &addresses, "ignored");
        let (head, tail) = text.split_once("ip6-allrouters\n").unwrap();
        assert!(head.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert_eq!(
            tail,
            "10.1.2.3\th.s.shop.svc.cluster.local\th\nfd00::3\th.s.shop.svc.cluster.local\th\n\n\
             # Entries added by HostAliases.\n10.9.9.9\tdb\tdb.local\n"
        );
        let shared = pod(&json!({"hostNetwork": true, "hostAliases": aliases}));
        assert_eq!(
            hosts(&shared, &cluster, &addresses, "1.2.3.4 host\n"),
            "# Kubernetes-managed hosts file (host network).\n1.2.3.4 host\n\n\
             # Entries added by HostAliases.\n10.9.9.9\tdb\tdb.local\n"
        );
        let plain = hosts(&pod(&json!({})), &cluster, &addresses[..1], "");
        assert!(plain.ends_with("\n10.1.2.3\tweb-1\n"));
    }

    #[test]
    fn the_pods_resolver_settings_are_added_to_the_machines() {
        let machine = parse(
            "# made by hand\nsearch old\nnameserver 10.0.0.1\nsearch lan corp\nnameserver 10.0.0.2\n\
             options ndots:1 rotate\n",
        );
        assert_eq!(machine.searches, ["lan", "corp"]);
        let config = json!({
            "nameservers": ["10.0.0.2", "1.1.1.1", "9.9.9.9"], "searches": ["corp", "more"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "edns0"}],
        });
        let merged = with_config(machine.clone(), &pod(&json!({"dnsConfig": config})));
        assert_eq!(merged.servers, ["10.0.0.1", "10.0.0.2", "1.1.1.1"]);
        assert_eq!(merged.searches, ["lan", "corp", "more"]);
        assert_eq!(merged.options, ["rotate", "ndots:5", "edns0"]);
        assert_eq!(with_config(machine.clone(), &pod(&json!({}))), machine);
        let alone = dns(
            &pod(&json!({"dnsPolicy": "None", "dnsConfig": config})),
            &ClusterDns::default(),
        );
        assert_eq!(alone.servers, ["10.0.0.2", "1.1.1.1", "9.9.9.9"]);
    }

    #[test]
    fn the_policy_says_whose_resolver_is_asked() {
        let cluster = ClusterDns {
            servers: vec![[10, 96, 0, 10].into()],
            domain: "shop.example".to_owned(),
        };
        for (spec, with, without) in [
            (json!({}), Resolver::Cluster, Resolver::Machine),
            (
                json!({"dnsPolicy": "ClusterFirst"}),
                Resolver::Cluster,
                Resolver::Machine,
            ),
            (
                json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
                Resolver::Machine,
                Resolver::Machine,
            ),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                Resolver::Cluster,
                Resolver::Machine,
            ),
            (
                json!({"dnsPolicy": "Default"}),
                Resolver::Machine,
                Resolver::Machine,
            ),
            (json!({"dnsPolicy": "None"}), Resolver::None, Resolver::None),
        ] {
            let pod = pod(&spec);
            assert_eq!(Resolver::of(&pod, &cluster), with, "{spec}");
            assert_eq!(Resolver::of(&pod, &ClusterDns::default()), without, "{spec}");
        }
        let config = json!({"options": [{"name": "ndots", "value": "2"}], "searches": ["more"]});
        let of_machine = vec!["lan".to_owned(), "shop.example".to_owned()];
        let plain = cluster_dns(&pod(&json!({})), &cluster, &of_machine);
        assert_eq!(plain.servers, ["10.96.0.10"]);
        let searches = ["shop.svc.shop.example", "svc.shop.example", "shop.example", "lan"];
        assert_eq!(plain.searches, searches);
        assert_eq!(plain.options, ["ndots:5"]);
        let changed = with_config(plain, &pod(&json!({"dnsConfig": config})));
        assert_eq!(changed.options, ["ndots:2"]);
        assert_eq!(changed.searches.last().map(String::as_str), Some("more"));
    }

    #[test]
    fn too_many_search_domains_are_cut() {
        let many: Vec<String> = (0..40).map(|n| format!("{n}.{}", "x".repeat(90))).collect();
        let pod = pod(&json!({"dnsPolicy": "None", "dnsConfig": {"searches": many}}));
        let searches = dns(&pod, &ClusterDns::default()).searches;
        assert!(!searches.is_empty() && searches.join(" ").len() <= MAX_SEARCH_TEXT);
    }

    /// The most memory that this process ever had, in bytes.
    fn peak_memory() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_ascii_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024
    }

    #[test]
    fn what_a_container_made_of_its_hosts_file_is_replaced_and_costs_no_memory() {
        const GROWN: u64 = 512 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc-hosts");
        write_if_changed(&path, "text").unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(GROWN)
            .unwrap();
        let before = peak_memory();
        write_if_changed(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert!(peak_memory() - before < GROWN / 8, "the file was read to its end");
    }

    #[test]
    fn the_hosts_file_is_never_written_through_a_link_or_into_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let [other, link, pipe] = ["other", "link", "pipe"].map(|name| directory.path().join(name));
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(write_if_changed(&link, "text").is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(write_if_changed(&pipe, "text").is_err());
    }
}
