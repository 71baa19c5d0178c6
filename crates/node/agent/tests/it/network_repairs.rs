//! Parts of the pods' network that other programs changed and the runtime restored: the node reports them.

use std::collections::BTreeSet;

use pulselet_agent::Feed;
use pulselet_runtime::NetworkPart;
use pulselet_vocabulary::Severity;
use tokio::net::TcpListener;

use crate::harness::{Bench, runtime};
use crate::socket::get;

#[tokio::test]
async fn restored_parts_of_the_network_are_events_and_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let metrics = listener.local_addr().expect("an address");
    let feed = Feed::default();
    let own = feed.clone();
    let bench = Bench::on(tempfile::tempdir().expect("a directory"), runtime(), |options| {
        options.metrics = Some(listener);
        options.feed = Some(own);
    })
    .await;
    for part in NetworkPart::ALL {
        bench.runtime.restore_network(part);
    }
    let mut events = Vec::new();
    while events.len() < NetworkPart::ALL.len() {
        events.extend(feed.next().await.node_events);
    }
    let reasons: Vec<_> = events.iter().map(|event| event.reason).collect();
    let (rules, settings) = ("NetworkRulesRestored", "NetworkSettingsRestored");
    assert_eq!(reasons, [rules, rules, settings, settings]);
    assert!(events.iter().all(|event| event.severity == Severity::Warning));
    let messages: BTreeSet<_> = events.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(messages.len(), events.len(), "each says which part it was");
    let text = get(metrics, "/metrics").await;
    for part in NetworkPart::ALL {
        let line = format!("pulselet_network_repairs_total{{part=\"{}\"}} 1\n", part.name());
        assert!(text.contains(&line), "{line}{text}");
    }
}
