//! The agent: one task that owns all pods, feeds the engine and has its actions carried out.
//!
//! Everything that changes a pod passes through [`Agent::feed`] or [`Agent::advance`]. What always holds:
//! - a pod's state is on disk before an action that follows from it begins, and before others see it, unless the disk
//!   refuses: then the node acts first, and only new sandboxes wait;
//! - nothing in the loop waits: runtimes, disks and readers are waited for elsewhere;
//! - the engine decides, this carries out.

mod actions;
mod admission;
mod adopt;
mod duties;
mod entry;
mod journal;
mod lateness;
mod machine_shutdown;
mod network_repairs;
mod observe;
mod pods;
mod publish;
mod requests;
mod resize;
mod starvation;
mod succession;
mod transitions;

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::io::Action;
use pulselet_engine::{Input, LifeKey, Outbox, PodKey, Pods, Time};
use pulselet_plan::NodeConfig;
use pulselet_runtime::{ContainerId, Events};
use pulselet_vocabulary::PodName;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

pub use adopt::AdoptError;
pub(crate) use adopt::Findings;
pub(crate) use duties::PressureWatch;
pub(crate) use machine_shutdown::{MachineShutdown, PodGroup};
pub(crate) use pods::ports;
pub use requests::{
    AddError, Added, How, Located, LogError, LogPlace, NoSuchPod, PodView, ProbeView, Shutdown, StreamError,
    UpdateError,
};
pub(crate) use requests::{REQUESTS, Request};

use self::entry::{DueAction, PendingOutput, PodEntry};
use self::journal::{Journal, Verdict};
use self::lateness::Lateness;
use self::starvation::Starvation;
use crate::endpoints::metrics::Metrics;
use crate::jobs::{JobAnswer, JobContext};
use crate::publish::feed::Feed;
use crate::publish::lines::LineHub;
use crate::state::store::{Note, Writer};

/// How often the runtime is asked what there is, in case an event was missed.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(10);
/// The same for a runtime that reports no events.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often some of the states are saved that changed only by one more success.
const LIGHT_SAVE_INTERVAL: Duration = Duration::from_millis(100);
/// After so many intervals all of them were saved: a crash costs a pod about ten seconds of successes. Saving all at
/// once would make the probes of a large node late.
const LIGHT_SAVE_PARTS: usize = 100;
/// Answers taken in one turn before timers and others get theirs.
const ANSWERS_PER_TURN: usize = 256;
/// Pods advanced in one turn before answers get theirs.
const ADVANCES_PER_TURN: usize = 256;
/// How long a shutdown waits for a disk that refuses.
const LAST_SAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an agent that leaves goes on with the removal of pods that are all but gone.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// The clock is looked at again after this long at the latest: a machine that slept has moved on.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Agent {
    jobs: Arc<JobContext>,
    config: NodeConfig,
    metrics: Arc<Metrics>,
    hub: LineHub,
    /// For whoever joins this node to an API.
    api_feed: Option<Feed>,
    pods: Pods,
    entries: BTreeMap<PodKey, PodEntry>,
    names: HashMap<PodName, PodKey>,
    containers: HashMap<ContainerId, (PodKey, LifeKey)>,
    journal: Journal,
    tasks: JoinSet<()>,
    out: Outbox,
    starvation: Option<Starvation>,
    lateness: Lateness,
    /// `None` if nobody goes when the machine runs out of something.
    pressure: Option<PressureWatch>,
    machine_shutdown: MachineShutdown,
    /// When the images were looked at.
    images_looked_at: Option<Instant>,
    /// The part of the pods whose light changes are saved next.
    light_part: usize,
    ending: Option<Shutdown>,
    /// When an agent that was told to leave does so in any case.
    leave_by: Instant,
    /// A listing is under way.
    listing: bool,
    findings: mpsc::Receiver<Findings>,
    found: mpsc::Sender<Findings>,
}

/// What is known of the machine beside what runs on it.
#[derive(Debug)]
pub(crate) struct MachineWatch {
    pub(crate) pressure: Option<PressureWatch>,
    pub(crate) shutdown: MachineShutdown,
}

/// What wakes the agent, owned by its loop.
#[derive(Debug)]
pub(crate) struct Inlets {
    pub(crate) answers: mpsc::Receiver<JobAnswer>,
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) events: Events,
}

/// Why the loop came round.
enum Wake {
    Note(Note),
    Answer(JobAnswer),
    Event(Option<pulselet_runtime::RuntimeEvent>),
    Findings(Findings),
    Request(Option<Request>),
    Timer,
    Reconcile,
    LightSave,
    Beat,
}

impl Agent {
    pub(crate) fn new(
        jobs: Arc<JobContext>,
        config: NodeConfig,
        metrics: Arc<Metrics>,
        hub: LineHub,
        api_feed: Option<Feed>,
        writer: Writer,
        machine: MachineWatch,
    ) -> Self {
        let now = jobs.clock.now();
        let starvation = config.settings.overload_guard.then(|| Starvation::new(now));
        // One listing at a time.
        let (found, findings) = mpsc::channel(1);
        Self {
            jobs,
            config,
            metrics,
            hub,
            api_feed,
            pods: Pods::default(),
            entries: BTreeMap::new(),
            names: HashMap::new(),
            containers: HashMap::new(),
            journal: Journal::new(writer),
            tasks: JoinSet::new(),
            out: Outbox::default(),
            starvation,
            lateness: Lateness::default(),
            pressure: machine.pressure,
            machine_shutdown: machine.shutdown,
            images_looked_at: None,
            light_part: 0,
            ending: None,
            leave_by: Instant::now(),
            listing: false,
            findings,
            found,
        }
    }

    /// Runs until a shutdown is done or nobody can ask for one any more.
    pub(crate) async fn run(mut self, mut inlets: Inlets) {
        let every = if self.jobs.version.features.events {
            RECONCILE_INTERVAL
        } else {
            POLL_INTERVAL
        };
        let start = Instant::now();
        let mut reconcile = tokio::time::interval_at(start + every, every);
        let mut light_save = tokio::time::interval_at(start + LIGHT_SAVE_INTERVAL, LIGHT_SAVE_INTERVAL);
        let mut beat = tokio::time::interval(starvation::BEAT);
        for interval in [&mut reconcile, &mut light_save, &mut beat] {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        }
        let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        let (mut events_over, mut requests_over) = (false, false);
        while !self.is_done() {
            self.turn();
            self.arm(timer.as_mut());
            let wake = tokio::select! {
                biased;
                note = self.journal.note() => Wake::Note(note),
                Some(answer) = inlets.answers.recv() => Wake::Answer(answer),
                event = inlets.events.next(), if !events_over => Wake::Event(event),
                Some(findings) = self.findings.recv() => Wake::Findings(findings),
                request = inlets.requests.recv(), if !requests_over => Wake::Request(request),
                () = timer.as_mut() => Wake::Timer,
                _ = reconcile.tick() => Wake::Reconcile,
                _ = light_save.tick() => Wake::LightSave,
                _ = beat.tick(), if self.starvation.is_some() => Wake::Beat,
            };
            events_over |= matches!(wake, Wake::Event(None));
            requests_over |= matches!(wake, Wake::Request(None));
            self.wake(wake, &mut inlets);
            // However busy the probes keep it, somebody who asks gets an answer.
            if let Ok(request) = inlets.requests.try_recv() {
                self.request(request);
            }
        }
        self.last_save().await;
    }

    fn wake(&mut self, wake: Wake, inlets: &mut Inlets) {
        if let Some(starvation) = &mut self.starvation {
            starvation.beat(self.jobs.clock.now());
        }
        match wake {
            Wake::Note(note) => self.judge(note),
            Wake::Answer(answer) => {
                self.answer(answer);
                for _ in 1..ANSWERS_PER_TURN {
                    let Ok(answer) = inlets.answers.try_recv() else {
                        break;
                    };
                    self.answer(answer);
                }
            }
            Wake::Event(Some(event)) => self.runtime_event(event),
            // Runtimes end with the process; until then the listings go on.
            Wake::Event(None) | Wake::Timer | Wake::Beat => {}
            Wake::Findings(findings) => self.reconcile(&findings),
            Wake::Request(Some(request)) => self.request(request),
            // Every handle was dropped: nobody can ask for anything else.
            Wake::Request(None) => self.shut_down(Shutdown::Leave),
            Wake::Reconcile => {
                self.look();
                self.measure_volumes();
                self.attend_to_duties();
                self.retry_resizes();
                self.count_running();
            }
            Wake::LightSave => {
                self.mark_some_lightly_changed();
                if self.journal.falls_behind(self.jobs.clock.now()) {
                    tracing::warn!(
                        "the disk takes long to write the node's state; what is due does not wait for it"
                    );
                    self.stop_waiting();
                }
            }
        }
    }

    /// Advances what is due, begins a batch, reaps ended tasks.
    fn turn(&mut self) {
        let now = self.jobs.clock.now();
        self.advance_pressure(now);
        for _ in 0..ADVANCES_PER_TURN {
            if !self.advance(now) {
                break;
            }
        }
        self.journal.flush(now, &self.pods, &mut self.entries);
        self.answer_for_group();
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!(%error, "a job panicked");
            }
        }
    }

    /// Advances the earliest pod that is due; false if none is.
    fn advance(&mut self, now: Time) -> bool {
        let Some(due) = self.pods.next_deadline() else {
            return false;
        };
        let Some(key) = self.pods.advance_one(now, &mut self.out) else {
            return false;
        };
        self.digest(key, due);
        true
    }

    fn arm(&mut self, mut timer: Pin<&mut Sleep>) {
        let deadlines = [self.pods.next_deadline(), self.lateness.next_deadline()];
        let next = deadlines.into_iter().flatten().min();
        let wait = next.map_or(LONGEST_SLEEP, |at| self.jobs.clock.until(at).min(LONGEST_SLEEP));
        let at = Instant::now() + wait;
        if timer.is_elapsed() || timer.deadline() != at {
            timer.as_mut().reset(at);
        }
    }

    /// Gives an input to a pod and does what follows.
    fn feed(&mut self, key: PodKey, input: Input) {
        let now = self.jobs.clock.now();
        self.pods.handle(now, key, input, &mut self.out);
        self.digest(key, now);
    }

    /// Sorts what a step produced: urgent things wait for the disk, the rest happens now.
    fn digest(&mut self, key: PodKey, due: Time) {
        let mut out = std::mem::take(&mut self.out);
        self.follow(key, &out.transitions);
        self.record(key, &out.lines, &out.events);
        if let Some(entry) = self.entries.get_mut(&key) {
            let due_actions = out.actions.drain(..).map(|action| DueAction { action, due });
            let waits = !entry.pending.actions.is_empty() || !entry.pending.lines.is_empty();
            if out.dirty {
                let pending = &mut entry.pending.actions;
                for due_action in due_actions {
                    // Asked again while the disk refuses, an action is still one action.
                    if !pending.iter().any(|other| other.action == due_action.action) {
                        pending.push(due_action);
                    }
                }
                entry.pending.lines.append(&mut out.lines);
                self.journal.mark(key);
                if self.journal.is_behind() {
                    let pending = std::mem::take(&mut entry.pending);
                    self.go_ahead(key, pending);
                }
            } else {
                entry.changed_lightly = true;
                let due_actions: Vec<_> = due_actions.collect();
                if waits {
                    entry.pending.lines.append(&mut out.lines);
                } else {
                    // Lines are published in the order in which things happened.
                    self.journal.follow(key, &mut out.lines);
                    self.publish(key, out.lines.drain(..));
                }
                for due_action in due_actions {
                    self.perform(key, &due_action);
                }
            }
        }
        out.clear();
        self.out = out;
    }

    fn judge(&mut self, note: Note) {
        match self.journal.judge(note) {
            Verdict::Saved(pods) => {
                self.jobs.state_health.written();
                for (key, pending) in pods {
                    self.release(key, pending);
                }
            }
            Verdict::Refused { error } => {
                let message = format!(
                    "the node's state cannot be written ({error}): everything keeps running and is kept healthy, but no \
                     pod is begun, and an agent that is restarted now forgets what happened meanwhile; make room on the disk"
                );
                self.jobs.state_health.refused(message.clone());
                self.warn_all(&message);
                self.stop_waiting();
                self.measure_volumes();
            }
            Verdict::Nothing => {}
        }
    }

    /// The disk refuses or takes too long: what waits for it goes ahead.
    fn stop_waiting(&mut self) {
        let mut waiting = self.journal.waiting();
        for (key, entry) in &mut self.entries {
            waiting.push((*key, std::mem::take(&mut entry.pending)));
        }
        for (key, pending) in waiting {
            self.go_ahead(key, pending);
        }
    }

    /// Does what follows from a state that is not on disk, new sandboxes aside.
    fn go_ahead(&mut self, key: PodKey, mut pending: PendingOutput) {
        let begins = |due: &DueAction| match due.action {
            Action::RunSandbox { .. } => true,
            Action::StopSandbox
            | Action::EnsureImage { .. }
            | Action::Create { .. }
            | Action::Start { .. }
            | Action::Probe { .. }
            | Action::Hook { .. }
            | Action::CancelHook { .. }
            | Action::Stop { .. }
            | Action::Kill { .. }
            | Action::Remove { .. } => false,
        };
        let (waiting, due): (Vec<_>, Vec<_>) = pending.actions.drain(..).partition(begins);
        pending.actions = due;
        if !waiting.is_empty() {
            let left = self.journal.keep_waiting(key, waiting);
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.pending.actions.extend(left);
            }
        }
        self.release(key, pending);
    }

    /// The state is on disk, or cannot be now: others may know, and things may happen.
    fn release(&mut self, key: PodKey, pending: PendingOutput) {
        self.publish(key, pending.lines);
        if let (Some(feed), Some(entry)) = (&self.api_feed, self.entries.get(&key)) {
            feed.changed(&entry.pod_name);
        }
        for due_action in pending.actions {
            self.perform(key, &due_action);
        }
        // One that was over only after this batch was made is forgotten with the next.
        let is_over = self
            .pods
            .get(key)
            .is_some_and(pulselet_engine::PodMachine::is_over);
        if is_over && (!self.journal.is_marked(key) || self.journal.is_behind()) {
            // Its files are perhaps what fills the disk: they do not wait for it.
            if self.journal.is_marked(key)
                && let Some(entry) = self.entries.get(&key)
            {
                self.journal.forget(key, &entry.identity.uid);
            }
            if let (Some(feed), Some(last)) = (&self.api_feed, self.view(key)) {
                feed.departed(last);
            }
            self.pods.remove(key);
            self.clean_up(key);
        }
    }

    /// Marks the next part of the pods.
    fn mark_some_lightly_changed(&mut self) {
        let part = self
            .entries
            .iter()
            .skip(self.light_part)
            .step_by(LIGHT_SAVE_PARTS);
        for (key, _) in part.filter(|(_, entry)| entry.changed_lightly) {
            self.journal.mark(*key);
        }
        self.light_part = (self.light_part + 1) % LIGHT_SAVE_PARTS;
    }

    fn mark_lightly_changed(&mut self) {
        for (key, entry) in &self.entries {
            if entry.changed_lightly {
                self.journal.mark(*key);
            }
        }
    }

    fn is_done(&self) -> bool {
        match self.ending {
            None => false,
            Some(Shutdown::Leave) => !self.is_about_to_remove() || self.leave_by <= Instant::now(),
            Some(Shutdown::StopPods | Shutdown::KillPods) => {
                self.entries.is_empty() && self.journal.is_idle()
            }
        }
    }

    /// Whether a deleted pod is all but gone: its grace period is over. What is left of it on the machine would stay until
    /// the next agent comes, if one does.
    fn is_about_to_remove(&self) -> bool {
        let now = self.jobs.clock.now();
        self.entries.keys().any(|key| match self.pods.get(*key) {
            Some(pod) => pod.is_deleting() && (pod.ends_by() <= Some(now) || !self.has_running_life(*key)),
            // The engine has forgotten it; its files are being removed.
            None => true,
        })
    }

    fn has_running_life(&self, key: PodKey) -> bool {
        let entry = self.entries.get(&key);
        entry.is_some_and(|entry| entry.lives.iter().any(entry::Life::is_running))
    }

    /// Writes down everything once more, as far as the disk allows.
    async fn last_save(&mut self) {
        self.tasks.abort_all();
        self.mark_lightly_changed();
        let deadline = Instant::now() + LAST_SAVE_TIMEOUT;
        loop {
            let now = self.jobs.clock.now();
            self.journal.flush(now, &self.pods, &mut self.entries);
            if self.journal.is_idle() {
                return;
            }
            let Ok(note) = tokio::time::timeout_at(deadline, self.journal.note()).await else {
                tracing::error!("the last changes of the node's state could not be written");
                return;
            };
            // What follows from these states is the next agent's to do.
            if let Verdict::Saved(pods) = self.journal.judge(note) {
                for (key, pending) in pods {
                    self.publish(key, pending.lines);
                }
            }
        }
    }
}
