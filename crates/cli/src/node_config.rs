//! The node's settings, from `--config` and the flags that win over it.

use pulselet_plan::NodeConfig;

use crate::cli::NodeArgs;
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
