//! The machine goes down: pods are stopped in two groups, and nothing new begins.
//!
//! Whoever knows about the machine says when, and how long each group has. What becomes of a pod afterwards depends on
//! whose it is: one of a cluster has failed, one of this machine begins anew when the machine is up again.

use pulselet_engine::line::Phase;
use pulselet_engine::{AfterShutdown, Input, PodKey, Span};
use pulselet_plan::duties::SYSTEM_CRITICAL_PRIORITY;
use pulselet_plan::{PodRefusal, RefusalReason};
use pulselet_vocabulary::Severity;
use tokio::sync::{oneshot, watch};

use super::Agent;
use super::entry::PodEntry;
use crate::pod::identity::Origin;
use crate::publish::feed::NodeEvent;

/// What the agent knows of the machine's shutdown.
#[derive(Debug)]
pub(crate) struct MachineShutdown {
    pub(crate) is_under_way: watch::Sender<bool>,
    /// Pods of the API belong to this machine as others do: the API goes down with it.
    pub(crate) keeps_api_pods: bool,
    /// Who waits for a group to be gone.
    waiting: Option<(PodGroup, oneshot::Sender<()>)>,
}

/// Pods that are stopped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodGroup {
    Ordinary,
    /// Those that keep the node or the cluster going; they go last.
    Critical,
}

impl PodGroup {
    fn has(self, entry: &PodEntry) -> bool {
        let is_critical = entry.priority >= SYSTEM_CRITICAL_PRIORITY;
        match self {
            Self::Ordinary => !is_critical,
            Self::Critical => is_critical,
        }
    }
}

impl MachineShutdown {
    pub(crate) fn new(is_under_way: watch::Sender<bool>, keeps_api_pods: bool) -> Self {
        Self {
            is_under_way,
            keeps_api_pods,
            waiting: None,
        }
    }

    fn after(&self, origin: &Origin) -> AfterShutdown {
        if origin.is_api() && !self.keeps_api_pods {
            AfterShutdown::Failed
        } else {
            AfterShutdown::BeginsAnew
        }
    }
}

impl Agent {
    pub(super) fn machine_goes_down(&mut self) {
        if self.machine_shutdown.is_under_way.send_replace(true) {
            return;
        }
        tracing::warn!("the machine goes down: pods are stopped, and no other is begun");
        self.announce_shutdown("Shutdown manager detected shutdown event");
    }

    /// The machine stays up: pods of this machine begin anew, those of a cluster have failed.
    pub(super) fn machine_stays(&mut self) {
        if !self.machine_shutdown.is_under_way.send_replace(false) {
            return;
        }
        tracing::warn!("the machine's shutdown was cancelled");
        self.announce_shutdown("Shutdown manager detected shutdown cancellation");
        if let Some((_, reply)) = self.machine_shutdown.waiting.take() {
            let _ = reply.send(());
        }
        let keys: Vec<_> = self.entries.keys().copied().collect();
        for key in keys {
            self.feed(key, Input::ShutdownCancelled);
        }
    }

    /// Stops a group; whoever asked is answered when it is gone, or at once if the machine stays after all.
    pub(super) fn stop_group(&mut self, group: PodGroup, left: Span, reply: oneshot::Sender<()>) {
        if !*self.machine_shutdown.is_under_way.borrow() {
            let _ = reply.send(());
            return;
        }
        let chosen = self.entries.iter().filter(|(_, entry)| group.has(entry));
        let chosen: Vec<_> = chosen
            .map(|(key, entry)| (*key, self.machine_shutdown.after(&entry.origin)))
            .collect();
        for (key, then) in chosen {
            if let Some(entry) = self.entries.get_mut(&key) {
                // Nothing is fetched any more for whoever waits for its name.
                entry.preparation = None;
            }
            self.feed(key, Input::NodeShutdown { left, then });
        }
        self.machine_shutdown.waiting = Some((group, reply));
    }

    /// Answers whoever waits for a group that is gone.
    pub(super) fn answer_for_group(&mut self) {
        let Some((group, _)) = &self.machine_shutdown.waiting else {
            return;
        };
        let group = *group;
        let mut members = self.entries.iter().filter(|(_, entry)| group.has(entry));
        if members.all(|(key, _)| self.has_stopped(*key))
            && let Some((_, reply)) = self.machine_shutdown.waiting.take()
        {
            // Whoever asked may have stopped waiting, because the time is over.
            let _ = reply.send(());
        }
    }

    fn has_stopped(&self, key: PodKey) -> bool {
        self.pods.get(key).is_none_or(|pod| match pod.phase() {
            Phase::Succeeded | Phase::Failed => true,
            Phase::Pending | Phase::Running => pod.is_stopped(),
        })
    }

    /// Why a node of a cluster that goes down takes no pod; `None` if it does.
    pub(super) fn lack_of_time(&self, origin: &Origin) -> Option<PodRefusal> {
        let fails = self.machine_shutdown.after(origin) == AfterShutdown::Failed;
        let is_under_way = *self.machine_shutdown.is_under_way.borrow();
        (fails && is_under_way).then(|| PodRefusal {
            reason: RefusalReason::NodeShutdown,
            field: "spec".to_owned(),
            message: "Pod was rejected as the node is shutting down.".to_owned(),
        })
    }

    /// A pod of this machine that comes while it goes down waits for the next agent.
    pub(super) fn begins_while_machine_goes_down(&mut self, key: PodKey) {
        if *self.machine_shutdown.is_under_way.borrow() {
            let (left, then) = (Span::ZERO, AfterShutdown::BeginsAnew);
            self.feed(key, Input::NodeShutdown { left, then });
        }
    }

    fn announce_shutdown(&self, message: &str) {
        if let Some(feed) = &self.api_feed {
            let clock = self.jobs.clock;
            feed.node_event(NodeEvent {
                severity: Severity::Normal,
                reason: "NodeShutdown",
                message: message.to_owned(),
                at: clock.wall(clock.now()),
            });
        }
    }
}
