//! The local node: its agent is followed, and the one after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pulselet_agent::control::{ControlClient, ControlClientError, LineStream};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use crate::feed::{PageFeed, PageState, SETTLE, Usage};

/// How often the agent is asked though nothing seems to have changed.
const REFRESH: Duration = Duration::from_secs(3);
/// How long to wait before an agent is looked for again that is not there.
const RECONNECT: Duration = Duration::from_secs(1);

/// Follows the agent, and the one after it, for ever.
pub(crate) async fn follow(feed: Arc<PageFeed>, client: ControlClient) {
    loop {
        let Err(error) = follow_one(&feed, &client).await;
        feed.set_state(&PageState {
            trouble: Some(error.to_string()),
            node: None,
            api: None,
            pods: &[],
            ends: BTreeMap::new(),
            usage: BTreeMap::new(),
            pressure: pressure(),
        });
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn follow_one(
    feed: &PageFeed,
    client: &ControlClient,
) -> Result<std::convert::Infallible, ControlClientError> {
    // Listening first: nothing falls between history and what is told live.
    let mut stream: LineStream = client.lines().await?;
    for line in client.history(None, None).await?.lines() {
        feed.keep(line);
    }
    refresh(feed, client).await?;
    let mut settled = tokio::time::interval(SETTLE);
    settled.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut changed, mut refreshed) = (false, Instant::now());
    loop {
        tokio::select! {
            line = stream.next() => {
                let gone = || ControlClientError::Receive("the agent has ended".into());
                changed |= feed.keep(&line?.ok_or_else(gone)?);
            }
            _ = settled.tick() => {
                if changed || refreshed.elapsed() > REFRESH {
                    refresh(feed, client).await?;
                    (changed, refreshed) = (false, Instant::now());
                }
            }
        }
    }
}

async fn refresh(feed: &PageFeed, client: &ControlClient) -> Result<(), ControlClientError> {
    let (pods, node) = (client.pods().await?, client.node().await?);
    let usage = if feed.is_watched() {
        usage(&client.usage::<Value>().await?)
    } else {
        BTreeMap::new()
    };
    feed.set_state(&PageState {
        trouble: node.trouble.clone(),
        node: Some(&node),
        api: None,
        pods: &pods,
        ends: feed.ends(&pods),
        usage,
        pressure: pressure(),
    });
    Ok(())
}

/// Per `namespace/pod/container`, from a kubelet's summary.
fn usage(summary: &Value) -> BTreeMap<String, Usage> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = BTreeMap::new();
    for pod in list(&summary["pods"]) {
        let name = |key: &str| pod["podRef"][key].as_str().unwrap_or_default().to_owned();
        for container in list(&pod["containers"]) {
            let key = format!(
                "{}/{}/{}",
                name("namespace"),
                name("name"),
                container["name"].as_str().unwrap_or_default()
            );
            let used = Usage {
                cpu_nano_cores: container["cpu"]["usageNanoCores"].as_u64(),
                memory_bytes: container["memory"]["workingSetBytes"].as_u64(),
            };
            all.insert(key, used);
        }
    }
    all
}

/// What the kernel says about waiting, where it says it.
fn pressure() -> BTreeMap<&'static str, f64> {
    let of = |resource: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?;
        average(&text)
    };
    let resources = ["cpu", "memory", "io"];
    resources
        .into_iter()
        .filter_map(|resource| Some((resource, of(resource)?)))
        .collect()
}

/// `avg10` of the line `some`.
fn average(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let field = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    field.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.20 total=1\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(average(text), Some(1.53));
        assert_eq!(average("nonsense"), None);
    }
}
