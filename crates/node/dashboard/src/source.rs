//! Whose pods the page shows: those of the local agent, or those of a namespace at an API.

use std::sync::Arc;

use pulselet_agent::control::{ControlClient, ControlClientError, NodeView};
use pulselet_cluster::{ApiClientError, PodObserver};
use pulselet_engine::plan::Settings;
use pulselet_model::{Gate, GateSet, Pod};
use pulselet_vocabulary::PodName;
use thiserror::Error;

use crate::feed::PageFeed;
use crate::{agent_source, api_source};

#[derive(Clone, Debug)]
pub enum DashboardSource {
    /// The local node, over its agent's socket.
    Agent(ControlClient),
    /// A namespace of an API.
    Api(PodObserver),
}

/// A pod as it was admitted, and the rules of the node it runs on.
#[derive(Debug)]
pub(crate) struct PodInPlace {
    pub(crate) pod: Pod,
    pub(crate) rules: NodeRules,
}

/// What a pod's timing depends on besides its manifest.
#[derive(Clone, Debug)]
pub(crate) struct NodeRules {
    pub(crate) gates: GateSet,
    pub(crate) settings: Settings,
}

#[derive(Debug, Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    Agent(#[from] ControlClientError),
    #[error(transparent)]
    Api(#[from] ApiClientError),
}

impl SourceError {
    /// The status of the answer that was no; `None` if there was no answer.
    pub(crate) fn refusal(&self) -> Option<u16> {
        match self {
            Self::Agent(ControlClientError::Refused { status, .. }) => Some(*status),
            Self::Api(ApiClientError::Refused { code, .. }) => Some(code.as_u16()),
            Self::Agent(_) | Self::Api(_) => None,
        }
    }
}

impl DashboardSource {
    pub(crate) async fn follow(self, feed: Arc<PageFeed>) {
        match self {
            Self::Agent(client) => agent_source::follow(feed, client).await,
            Self::Api(observer) => api_source::follow(feed, observer).await,
        }
    }

    pub(crate) async fn pod(&self, name: &PodName) -> Result<PodInPlace, SourceError> {
        match self {
            Self::Agent(client) => Ok(PodInPlace {
                pod: client.manifest(name).await?,
                rules: NodeRules::of(&client.node().await?),
            }),
            // An API does not tell how its nodes are set: as they are if nobody sets anything.
            Self::Api(observer) => Ok(PodInPlace {
                pod: observer.pod(name).await?,
                rules: NodeRules::usual(),
            }),
        }
    }
}

impl NodeRules {
    pub(crate) fn usual() -> Self {
        Self {
            gates: GateSet::ALL,
            settings: Settings::default(),
        }
    }

    /// The node's own; gates that it does not name are on, as they are by default.
    fn of(node: &NodeView) -> Self {
        let is_on = |gate: Gate| node.gates.get(gate.name()).copied().unwrap_or(true);
        let all = Gate::ALL.into_iter();
        Self {
            gates: all.fold(GateSet::ALL, |set, gate| set.with(gate, is_on(gate))),
            settings: node.settings,
        }
    }
}
