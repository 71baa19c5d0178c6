//! Networks of pods that plugins make, as the Container Network Interface has it: each plugin of a list is run with its
//! configuration and the result of the one before.
//!
//! What was chosen for a sandbox is written to its directory before any plugin is run and kept until all of them have
//! taken their part away. So the plugins that made a network also remove it, whatever the configuration says by then,
//! and also if the agent was killed between.

mod config;
mod plugin;

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use pulselet_runtime::{PodIdentity, PortMapping, Protocol, SandboxConfig, SandboxId};
use pulselet_shim::record::{self, Durability, RecordError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub(crate) use config::ConfigError;
use config::NetworkConfig;
use plugin::{Call, Verb};
pub(crate) use plugin::{PluginError, addresses};

use crate::sandbox::NETWORK;

/// In a sandbox's directory.
const ATTACHMENT: &str = "cni.json";

/// Where plugins usually are.
const DEFAULT_BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// Plugins that make the networks of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniOptions {
    /// Of its configurations the first by name counts.
    pub conf_dir: PathBuf,
    /// Where plugins are looked for, in this order.
    pub bin_dirs: Vec<PathBuf>,
}

impl CniOptions {
    /// With plugins where they usually are.
    pub fn new(conf_dir: PathBuf) -> Self {
        Self {
            conf_dir,
            bin_dirs: DEFAULT_BIN_DIRS.map(PathBuf::from).to_vec(),
        }
    }
}

/// For a fuzzer: what is made of a plugin's words, and of a configuration.
pub(crate) fn fuzz_result(bytes: &[u8]) {
    if let Ok(result) = serde_json::from_slice::<Value>(bytes) {
        let _ = addresses(&result);
    }
    plugin::fuzz_complaint(bytes);
    config::fuzz_config(bytes);
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CniError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("cannot remove {path}: {source}", path = path.display())]
    Forget { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("network {network:?} gave the pod no address")]
    NoAddress { network: String },
}

/// What a sandbox has of a network.
#[derive(Debug, Serialize, Deserialize)]
struct Attachment {
    network: NetworkConfig,
    /// The result of the last plugin; `None` until all have succeeded.
    result: Option<Value>,
}

/// A sandbox to be attached, checked or detached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) id: &'a SandboxId,
    pub(crate) dir: &'a Path,
    pub(crate) config: &'a SandboxConfig,
}

#[derive(Debug)]
pub(crate) struct Cni {
    /// `None` if new sandboxes are on the bridge.
    conf_dir: Option<PathBuf>,
    bin_dirs: Vec<PathBuf>,
}

impl Cni {
    pub(crate) fn new(options: Option<CniOptions>) -> Self {
        let options = options.map(|CniOptions { conf_dir, bin_dirs }| (Some(conf_dir), bin_dirs));
        let (conf_dir, bin_dirs) =
            options.unwrap_or_else(|| (None, DEFAULT_BIN_DIRS.map(PathBuf::from).to_vec()));
        Self { conf_dir, bin_dirs }
    }

    /// Whether new sandboxes get their network from plugins.
    pub(crate) fn is_wanted(&self) -> bool {
        self.conf_dir.is_some()
    }

    /// Whether sandboxes could be attached now.
    pub(crate) fn health(&self) -> Result<(), CniError> {
        self.network().map(drop)
    }

    /// Decides by which plugins a new sandbox will be attached. Comes before [`add`](Self::add), and is on the disk before
    /// one of them may give something away.
    pub(crate) fn choose(&self, dir: &Path) -> Result<(), CniError> {
        let Some(network) = self.network()? else {
            return Ok(());
        };
        let attachment = Attachment {
            network,
            result: None,
        };
        Ok(record::write(dir, ATTACHMENT, &attachment, Durability::Disk)?)
    }

    /// The network of new sandboxes. Its plugins are there: what one of them makes no missing one keeps from being
    /// removed.
    fn network(&self) -> Result<Option<NetworkConfig>, CniError> {
        let Some(conf_dir) = &self.conf_dir else {
            return Ok(None);
        };
        let network = NetworkConfig::read_first(conf_dir)?;
        for plugin in &network.plugins {
            plugin::find(config::kind(plugin), &self.bin_dirs)?;
        }
        Ok(Some(network))
    }

    /// Runs the plugins one after the other and returns the pod's addresses.
    pub(crate) async fn add(&self, target: Target<'_>) -> Result<Vec<IpAddr>, CniError> {
        let Some(mut attachment) = read(target.dir)? else {
            return Ok(Vec::new());
        };
        let args = arguments(target);
        let namespace = target.dir.join(NETWORK);
        let call = self.call(Verb::Add, target, &args, Some(&namespace));
        let network = &attachment.network;
        let mut result = None;
        for plugin in &network.plugins {
            let config = request(network, plugin, &target.config.port_mappings, result.as_ref());
            result = Some(call.add(plugin, &config).await?);
        }
        let addresses = result.as_ref().map(addresses).unwrap_or_default();
        if addresses.is_empty() {
            return Err(CniError::NoAddress {
                network: network.name.clone(),
            });
        }
        attachment.result = result;
        record::write(target.dir, ATTACHMENT, &attachment, Durability::Disk)?;
        Ok(addresses)
    }

    /// Asks the plugins whether everything is as they made it.
    pub(crate) async fn check(&self, target: Target<'_>) -> Result<(), CniError> {
        let Some(Attachment {
            network,
            result: Some(result),
        }) = read(target.dir)?
        else {
            return Ok(());
        };
        if !network.has_check() {
            return Ok(());
        }
        let args = arguments(target);
        let namespace = target.dir.join(NETWORK);
        let call = self.call(Verb::Check, target, &args, Some(&namespace));
        for plugin in &network.plugins {
            let config = request(&network, plugin, &target.config.port_mappings, Some(&result));
            call.run(plugin, &config).await?;
        }
        Ok(())
    }

    /// Runs the plugins in reverse to take away what they made. What is gone already is no error.
    pub(crate) async fn delete(&self, target: Target<'_>) -> Result<(), CniError> {
        let Some(Attachment { network, result }) = read(target.dir)? else {
            return Ok(());
        };
        let args = arguments(target);
        let namespace = target.dir.join(NETWORK);
        let namespace = is_namespace(&namespace).then_some(namespace.as_path());
        let call = self.call(Verb::Delete, target, &args, namespace);
        let previous = result.as_ref().filter(|_| network.has_check());
        for plugin in network.plugins.iter().rev() {
            let config = request(&network, plugin, &target.config.port_mappings, previous);
            call.run(plugin, &config).await?;
        }
        let path = target.dir.join(ATTACHMENT);
        fs::remove_file(&path).map_err(|source| CniError::Forget { path, source })
    }

    fn call<'a>(
        &'a self,
        verb: Verb,
        target: Target<'a>,
        args: &'a str,
        namespace: Option<&'a Path>,
    ) -> Call<'a> {
        Call {
            verb,
            container: target.id.as_str(),
            namespace,
            args,
            dirs: &self.bin_dirs,
        }
    }
}

/// Whether plugins were chosen for a sandbox, and have not yet removed its network.
pub(crate) fn is_attached(dir: &Path) -> bool {
    dir.join(ATTACHMENT).exists()
}

fn read(dir: &Path) -> Result<Option<Attachment>, CniError> {
    Ok(record::read(dir, ATTACHMENT)?)
}

/// A pinned namespace is a mount of its own; after a reboot only an empty file is there.
fn is_namespace(path: &Path) -> bool {
    let file_system = rustix::fs::statfs(path).map(|stat| stat.f_type);
    file_system.is_ok_and(|kind| kind == libc::NSFS_MAGIC)
}

/// The names under which plugins that know Kubernetes expect the pod.
fn arguments(target: Target<'_>) -> String {
    let PodIdentity { uid, namespace, name } = &target.config.pod;
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
         K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={uid}",
        target.id
    )
}

/// What a plugin reads: its configuration in the list, and what only this call knows.
fn request(
    network: &NetworkConfig,
    plugin: &Map<String, Value>,
    ports: &[PortMapping],
    previous: Option<&Value>,
) -> Map<String, Value> {
    let mut config = plugin.clone();
    config.insert("name".into(), json!(network.name));
    config.insert("cniVersion".into(), json!(network.cni_version));
    let can_map_ports = plugin
        .get("capabilities")
        .and_then(|all| all.get("portMappings"))
        .and_then(Value::as_bool)
        .unwrap_or(false);
    if can_map_ports && !ports.is_empty() {
        let ports: Vec<Value> = ports.iter().map(port).collect();
        config.insert("runtimeConfig".into(), json!({"portMappings": ports}));
    }
    if let Some(previous) = previous {
        config.insert("prevResult".into(), previous.clone());
    }
    config
}

fn port(mapping: &PortMapping) -> Value {
    let protocol = match mapping.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let mut port = json!({
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": protocol,
    });
    if let Some(address) = mapping.host_ip {
        port["hostIP"] = json!(address);
    }
    port
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_request_has_the_list_the_ports_and_the_result_before() {
        let plugin = json!({"type": "portmap", "capabilities": {"portMappings": true}, "x": 1});
        let plain = json!({"type": "bridge", "capabilities": {"portMappings": false}});
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin, plain]});
        let network: NetworkConfig = serde_json::from_value(list).expect("a list");
        let mapping = PortMapping {
            protocol: Protocol::Udp,
            container_port: 53,
            host_port: 5353,
            host_ip: "127.0.0.1".parse().ok(),
        };
        let previous = json!({"ips": []});
        let ask = |index: usize, ports: &[PortMapping], previous| {
            Value::Object(request(&network, &network.plugins[index], ports, previous))
        };
        assert_eq!(
            ask(0, std::slice::from_ref(&mapping), Some(&previous)),
            json!({
                "type": "portmap", "capabilities": {"portMappings": true}, "x": 1,
                "name": "pods", "cniVersion": "1.0.0", "prevResult": {"ips": []},
                "runtimeConfig": {"portMappings": [
                    {"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
                ]},
            })
        );
        assert!(ask(0, &[], None).get("runtimeConfig").is_none());
        assert!(ask(1, &[mapping], None).get("runtimeConfig").is_none());
    }

    /// Notes what it is asked, and whether it is given a result; answers with an address.
    const PLUGIN: &str = r#"#!/bin/sh
config=$(cat)
case $config in *prevResult*) previous=" after" ;; esac
echo "$CNI_COMMAND ${0##*/}$previous" >> "${0%/*}/calls"
echo '{"ips": [{"address": "10.1.2.3/24"}]}'
"#;

    #[tokio::test]
    async fn plugins_add_in_order_are_checked_in_order_and_delete_in_reverse() {
        let home = tempfile::tempdir().expect("a directory");
        for name in ["first", "second"] {
            let path = home.path().join(name);
            fs::write(&path, PLUGIN).expect("writes");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changes");
        }
        let plugins = json!([{"type": "first"}, {"type": "second"}]);
        let list = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins});
        fs::write(home.path().join("a.conflist"), list.to_string()).expect("writes");
        let cni = Cni::new(Some(CniOptions {
            conf_dir: home.path().to_owned(),
            bin_dirs: vec![home.path().to_owned()],
        }));
        let (id, config) = (SandboxId::new("s1"), SandboxConfig::default());
        let target = Target {
            id: &id,
            dir: home.path(),
            config: &config,
        };
        cni.choose(target.dir).expect("chooses");
        assert_eq!(
            cni.add(target).await.expect("adds"),
            ["10.1.2.3".parse::<IpAddr>().expect("one")]
        );
        cni.check(target).await.expect("checks");
        cni.delete(target).await.expect("deletes");
        cni.delete(target).await.expect("is gone");
        let calls = fs::read_to_string(home.path().join("calls")).expect("reads");
        let expected = [
            "ADD first",
            "ADD second after",
            "CHECK first after",
            "CHECK second after",
            "DEL second after",
            "DEL first after",
        ];
        assert_eq!(calls.lines().collect::<Vec<_>>(), expected);
    }
}
