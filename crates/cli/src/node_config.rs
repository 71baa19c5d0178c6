//! The node's settings, from `--config` and the flags that win over it.

use pulselet_plan::NodeConfig;

use crate::cli::{MemberArgs, NodeArgs};
use crate::exit::Failure;
use crate::input::Source;

impl NodeArgs {
    pub(crate) fn resolve(&self) -> Result<NodeConfig, Failure> {
        let mut config = match &self.config {
            Some(file) => {
                let source = Source::read_as(file, "expected the node's settings as YAML")?;
                NodeConfig::parse(source.text())
                    .map_err(|error| Failure::usage(format_args!("{file}: {error}")))?
            }
            None => NodeConfig::default(),
        };
        if let Some(gates) = &self.feature_gates {
            config.gates = config.gates.apply(gates).map_err(Failure::usage)?;
        }
        Ok(config)
    }
}

/// Name servers that resolvers look at.
const MAX_SERVERS: usize = 3;

impl MemberArgs {
    /// What a cluster's flags say wins over the settings.
    pub(crate) fn apply(&self, config: &mut NodeConfig) -> Result<(), Failure> {
        let dns = &mut config.duties.dns;
        if self.cluster_dns.len() > MAX_SERVERS {
            let message = format_args!(
                "--cluster-dns names more than {MAX_SERVERS} servers, which resolvers do not ask"
            );
            return Err(Failure::usage(message));
        }
        if !self.cluster_dns.is_empty() {
            dns.servers.clone_from(&self.cluster_dns);
        }
        if let Some(domain) = &self.cluster_domain {
            dns.domain.clone_from(domain);
        }
        Ok(())
    }
}
