//! The pods of a namespace at an API, ours or another: followed by watches, told as lines and states.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use pulselet_agent::PodView;
use pulselet_cluster::{ObservedNamespace, PodObserver};
use tokio::time::MissedTickBehavior;

use crate::api_lines::ApiStory;
use crate::feed::{ApiView, PageFeed, PageState, SETTLE};

/// Follows the namespace for ever. What was known stays while the API is away.
pub(crate) async fn follow(feed: Arc<PageFeed>, observer: PodObserver) {
    let mut namespace = observer.follow();
    let mut story = ApiStory::default();
    let (mut has_pods, mut has_events) = (false, false);
    let mut settled = tokio::time::interval(SETTLE);
    settled.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(seen) = namespace.pods.recv() => {
                story.take_pods(seen);
                has_pods = true;
            }
            Some(seen) = namespace.events.recv() => {
                story.take_events(seen);
                has_events = true;
            }
            _ = settled.tick() => {
                // The first story is told from both; who may not read events does without.
                let is_silent = namespace.events_trouble.borrow().is_some();
                if has_pods && (has_events || is_silent) {
                    for line in story.drain(Timestamp::now()) {
                        feed.keep(&line);
                    }
                }
                if has_pods || namespace.pods_trouble.borrow().is_some() {
                    publish(&feed, &observer, &namespace, &story);
                }
            }
        }
    }
}

fn publish(feed: &PageFeed, observer: &PodObserver, namespace: &ObservedNamespace, story: &ApiStory) {
    let pods: Vec<PodView> = story.pods().map(PodView::of_object).collect();
    let api = ApiView {
        server: observer.server(),
        namespace: observer.namespace().to_owned(),
        silence: namespace.events_trouble.borrow().clone(),
    };
    feed.set_state(&PageState {
        trouble: namespace.pods_trouble.borrow().clone(),
        node: None,
        api: Some(&api),
        pods: &pods,
        ends: feed.ends(&pods),
        usage: BTreeMap::new(),
        pressure: BTreeMap::new(),
    });
}
