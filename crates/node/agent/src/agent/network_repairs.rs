//! Parts of the pods' network that the runtime restored because another program had changed them: counted, and made known
//! as events of the node.

use pulselet_runtime::NetworkPart;
use pulselet_vocabulary::Severity;

use super::Agent;
use crate::publish::feed::NodeEvent;

impl Agent {
    pub(super) fn network_restored(&self, part: NetworkPart) {
        self.metrics.network_restored(part);
        let Some(feed) = &self.api_feed else { return };
        let clock = self.jobs.clock;
        feed.node_event(NodeEvent {
            severity: Severity::Warning,
            reason: reason(part),
            message: message(part).to_owned(),
            at: clock.wall(clock.now()),
        });
    }
}

fn reason(part: NetworkPart) -> &'static str {
    match part {
        NetworkPart::Firewall | NetworkPart::Services => "NetworkRulesRestored",
        NetworkPart::Forwarding | NetworkPart::Bridge => "NetworkSettingsRestored",
    }
}

fn message(part: NetworkPart) -> &'static str {
    match part {
        NetworkPart::Firewall => {
            "Another program had removed or changed the nftables rules for host ports, masquerading and protection from pods"
        }
        NetworkPart::Services => {
            "Another program had removed or changed the nftables rules for the addresses of services"
        }
        NetworkPart::Forwarding => {
            "Another program had turned off or changed how this machine forwards for pods"
        }
        NetworkPart::Bridge => "Another program had changed settings of the pods' bridge",
    }
}
