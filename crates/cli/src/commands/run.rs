//! `pulselet run`: an agent in the foreground that runs the pods of files and stops them at its end.
//!
//! A run ends when its pods have, when it is interrupted, when what it waited for has come or is late, or when nobody
//! reads its output any more. Its pods are stopped in every case. Pods of the directory that came from elsewhere (an
//! earlier `node`) are adopted, kept running and left as they were.

mod live;
mod logs;
mod progress;
mod stage;
mod state;
mod text;
mod verdict;
mod view;

use std::io::Write as _;
use std::time::Duration;

use pulselet_agent::{
    FULL_BACKLOG, Feed, FeedChange, How, Layout, LineHub, Lines, LocalObject, NodeHandle, Origin, PodView,
    Shutdown, pod_name_of,
};
use pulselet_model::{Pod, Profile};
use pulselet_plan::NodeConfig;
use tokio::time::Instant;

use crate::agent::{self, Setting};
use crate::cli::{RunArgs, WaitArg};
use crate::diagnostics;
use crate::exit::{Exit, Failure};
use crate::input::{Gatekeeper, Outcome, Source};
use crate::interrupt::Interrupts;
use crate::local_network::ServiceSource;
use crate::logging::{self, Quietness};
use crate::output::{self, Format};
use logs::ContainerLogs;
use progress::{Outlook, Progress};
use stage::{Remark, Stage};
use state::Pods;

pub(crate) use text::printable;
pub(crate) use view::age;

/// How long tasks that are still under way at the end may take; the pods are stopped by then.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
const STOPPING: &str = "stopping the pods gracefully; Ctrl-C kills them";
const STOPPING_INTERRUPTED: &str = "stopping the pods gracefully; Ctrl-C again kills them";
const BESIDE_ANOTHER: &str = "`pulselet run --detach` hands the pods to the agent that is there";
const KILLING: &str = "killing the pods; Ctrl-C again leaves what is left of them to the next run";

pub(crate) fn run(args: &RunArgs, verbose: u8) -> Result<Exit, Failure> {
    let mut config = args.agent.node.resolve()?;
    // The pods are those of who runs this, who can read the machine's files anyway.
    config.host_image.get_or_insert(true);
    let Some((pods, objects)) = read(&args.files, &config)? else {
        return Ok(Exit::No);
    };
    check_goal(args.wait, &pods)?;
    if args.detach {
        return agent::small_executor()?.block_on(detach(args, &pods, &objects));
    }
    let lines = LineHub::default();
    let states = Pods::new(&pods);
    // For what is said at the end; the stage has lines of its own.
    let watched = lines.subscribe(FULL_BACKLOG);
    let layout = Layout::new(args.agent.data.resolve()?);
    let logs = (!args.no_logs).then(|| ContainerLogs::new(layout.clone(), &states));
    let stage = Stage::open(args.output.output, verbose > 0, &lines, &states, logs)?;
    match stage.log_writer() {
        Some(writer) => logging::start_on(Quietness::Foreground, verbose, writer),
        None => logging::start(Quietness::Foreground, verbose)?,
    }
    let executor = agent::executor()?;
    let feed = Feed::default();
    let setting = Setting {
        config,
        lines,
        feed: Some(feed.clone()),
        metrics: args.metrics.clone(),
        manifests: None,
        objects,
        beside_another: Some(BESIDE_ANOTHER),
        application: None,
        services: ServiceSource::Pods(feed),
    };
    let watching = Watching {
        layout,
        states,
        lines: watched,
        stage: &stage,
    };
    let ended = executor.block_on(foreground(args, setting, pods, watching));
    // The hub goes with the agent's tasks, and the stage ends with the hub.
    executor.shutdown_timeout(LEAVE_TIMEOUT);
    stage.close()?;
    let (exit, remarks) = ended?;
    for (remark, tail) in remarks {
        output::error(&remark, None);
        for line in tail {
            output::note(&format!("  {line}"));
        }
    }
    Ok(exit)
}

/// What is said at the end, each with the lines of a log that go with it.
type Verdicts = Vec<(String, Vec<String>)>;

/// Refuses to wait for what cannot come.
fn check_goal(goal: Option<WaitArg>, pods: &[Pod]) -> Result<(), Failure> {
    let never_ends = |pod: &&Pod| matches!(pod.spec.restart_policy.as_str(), "" | "Always");
    match (goal, pods.iter().find(never_ends)) {
        (Some(WaitArg::Completed), Some(pod)) => Err(Failure::no(format_args!(
            "pod {} never completes: its restartPolicy is Always",
            pod_name_of(pod)
        ))
        .with_hint("give it restartPolicy OnFailure or Never, or wait for ready")),
        (Some(WaitArg::Ready | WaitArg::Stable(_) | WaitArg::Completed) | None, _) => Ok(()),
    }
}

/// What the files hold for a run.
type Contents = (Vec<Pod>, Vec<LocalObject>);

/// The pods and objects of all files; none if one is rejected, which has been said then.
fn read(files: &[String], config: &NodeConfig) -> Result<Option<Contents>, Failure> {
    let mut pods: Vec<Pod> = Vec::new();
    let mut objects: Vec<LocalObject> = Vec::new();
    let mut rejected = false;
    for file in files {
        let source = Source::read(file)?;
        source.judge(Profile::Pulselet, Gatekeeper::Node(config.gates), |verdict| {
            diagnostics::complain(&source, &verdict);
            match verdict.outcome {
                Outcome::Accepted(admission, _) => pods.push(admission.pod),
                Outcome::Object(object) => objects.push(object),
                Outcome::Skipped(_) => {}
                // Decoding for a node rejects workloads, and skips what they and Pods refer to.
                Outcome::Workload(..)
                | Outcome::Companion(_)
                | Outcome::Invalid(_)
                | Outcome::Undecodable(_) => rejected = true,
            }
            Ok(())
        })?;
    }
    for (index, pod) in pods.iter().enumerate() {
        let name = pod_name_of(pod);
        if pods[..index].iter().any(|other| pod_name_of(other) == name) {
            return Err(Failure::usage(format_args!("pod {name} is there twice")));
        }
        if let Err(error) = pulselet_plan::convert(pod, config.gates) {
            output::error(&format!("pod {name} cannot be run: {error}"), None);
            rejected = true;
        }
    }
    for (index, object) in objects.iter().enumerate() {
        let id = |it: &LocalObject| (it.kind(), it.namespace().to_owned(), it.name().to_owned());
        if objects[..index].iter().any(|other| id(other) == id(object)) {
            let (kind, namespace, name) = id(object);
            return Err(Failure::usage(format_args!(
                "{kind} {namespace}/{name} is there twice"
            )));
        }
    }
    if pods.is_empty() && !rejected {
        let failure = Failure::usage("cannot run these files: they hold no Pod");
        return Err(failure.with_hint("`pulselet check` lists what a file has"));
    }
    Ok((!rejected).then_some((pods, objects)))
}

/// Hands the pods over and says what became of each.
async fn detach(args: &RunArgs, pods: &[Pod], objects: &[LocalObject]) -> Result<Exit, Failure> {
    let client = args.agent.data.client()?;
    // Before the pods that need them.
    if !objects.is_empty() {
        client.keep_objects(objects).await?;
    }
    let mut out = output::stdout();
    for pod in pods {
        let added = client.add(pod).await?;
        let how = match added.how {
            How::Created => "created",
            How::Adopted => "unchanged",
            How::Replacing => "replacing the one that has its name",
        };
        output::written(match args.output.output {
            Format::Text => writeln!(out, "pod {} {how}", added.pod),
            Format::Json => serde_json::to_writer(&mut out, &added)
                .map_err(Into::into)
                .and_then(|()| writeln!(out)),
        })?;
    }
    output::written(out.flush())?;
    Ok(Exit::Done)
}

/// What a run is watched with.
struct Watching<'a> {
    layout: Layout,
    states: Pods,
    lines: Lines,
    stage: &'a Stage,
}

/// Runs the pods to the end of the run. Returns how it ended and what to say about it.
async fn foreground(
    args: &RunArgs,
    setting: Setting,
    pods: Vec<Pod>,
    watching: Watching<'_>,
) -> Result<(Exit, Verdicts), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let feed = setting.feed.clone().unwrap_or_default();
    let started = agent::start(&args.agent, setting).await?;
    if let Some(warning) = started.warning {
        watching.stage.remark(Remark::Say(warning.to_owned()));
    }
    let mut run = Run {
        node: started.node,
        progress: Progress::new(&pods),
        pods: watching.states,
        layout: watching.layout,
        feed,
        lines: watching.lines,
        stage: watching.stage,
        others: false,
    };
    run.take(pods).await?;
    let end = run.watch(&mut interrupts, args.wait, args.timeout).await;
    let remarks = run.remarks(end, args);
    let exit = run.exit(end, args.wait.is_some());
    run.stop(end, &mut interrupts).await;
    // Pods that are stopping may still ask for names.
    drop(started.network);
    Ok((exit, remarks))
}

/// Waits for a moment, if there is one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All pods have ended.
    Finished,
    /// What was waited for is there.
    Holds,
    /// What was waited for can no longer come.
    Impossible,
    Late,
    Interrupted,
    /// Nobody reads the output.
    Unread,
}

struct Run<'a> {
    node: NodeHandle,
    /// What the run goes by.
    progress: Progress,
    /// What is printed about the pods.
    pods: Pods,
    layout: Layout,
    /// Which pods have changed.
    feed: Feed,
    lines: Lines,
    stage: &'a Stage,
    /// The agent has pods that are not of this run.
    others: bool,
}

impl Run<'_> {
    /// Gives the pods to the agent, and stops those that an earlier run has left behind.
    async fn take(&mut self, pods: Vec<Pod>) -> Result<(), Failure> {
        let there = self.node.pods().await.map_err(Failure::environment)?;
        let ours = |view: &&PodView| self.pods.has(&view.pod_name());
        let adopted = there.iter().filter(ours).cloned().collect();
        self.stage.remark(Remark::Adopted(adopted));
        for view in there {
            let name = view.pod_name();
            if self.pods.has(&name) {
                continue;
            }
            if view.origin != Origin::Run {
                self.others = true;
                continue;
            }
            let text = format!("stopping pod {name}, which an earlier run has left behind");
            self.stage.remark(Remark::Say(text));
            // It may have gone meanwhile.
            let _ = self.node.delete_pod(&name, None).await;
        }
        for pod in pods {
            let added = self.node.add_pod(pod, Origin::Run).await;
            added
                .map_err(Failure::environment)?
                .map_err(Failure::environment)?;
        }
        let views = self.node.pods().await.map_err(Failure::environment)?;
        for view in &views {
            self.pods.recall(view);
            self.progress.update(view, Instant::now());
        }
        self.stage.remark(Remark::Pods(views));
        Ok(())
    }

    async fn watch(&mut self, interrupts: &mut Interrupts, goal: Option<WaitArg>, timeout: Duration) -> End {
        let deadline = goal.map(|_| Instant::now() + timeout);
        loop {
            let outlook = goal.map(|goal| self.progress.outlook(goal, Instant::now()));
            let by_itself = match outlook {
                Some(Outlook::Holds) => return End::Holds,
                Some(Outlook::Impossible) => return End::Impossible,
                None if self.progress.all_ended() => return End::Finished,
                Some(Outlook::Open(at)) => at,
                None => None,
            };
            tokio::select! {
                change = self.feed.next() => self.follow(change).await,
                line = self.lines.next() => match line {
                    Some(line) => self.pods.apply(&line),
                    // The agent has ended although nobody asked it to.
                    None => return End::Unread,
                },
                () = interrupts.next() => return End::Interrupted,
                () = until(deadline) => return End::Late,
                () = until(by_itself) => {}
                () = self.stage.closed() => return End::Unread,
            }
        }
    }

    /// Looks at the pods that have changed.
    async fn follow(&mut self, change: FeedChange) {
        for name in change.changed.iter().filter(|name| self.pods.has(name)) {
            // A node that is gone has closed its lines, which ends the run.
            if let Ok(Some(view)) = self.node.pod(name).await {
                self.progress.update(&view, Instant::now());
            }
        }
        for last in &change.departed {
            self.progress.departed(last, Instant::now());
        }
    }

    fn exit(&self, end: End, waited: bool) -> Exit {
        match end {
            // A code that no program can have is still a no.
            End::Finished if self.progress.any_failed() && !waited => match self.progress.failed_code() {
                Some(code) => Exit::Workload(u8::try_from(code).unwrap_or(1)),
                None => Exit::No,
            },
            End::Finished | End::Holds | End::Unread => Exit::Done,
            End::Impossible | End::Late => Exit::No,
            End::Interrupted => Exit::Interrupted,
        }
    }

    /// What a person should know about this end.
    fn remarks(&mut self, end: End, args: &RunArgs) -> Verdicts {
        let wanted = match args.wait {
            Some(WaitArg::Ready) | None => "ready",
            Some(WaitArg::Stable(_)) => "ready for long enough",
            Some(WaitArg::Completed) => "completed",
        };
        let headline = match end {
            End::Late => {
                let after = pulselet_plan::duration::format_duration(args.timeout.into());
                format!("not all pods are {wanted} after {after}")
            }
            End::Impossible => format!("not all pods can become {wanted} any more"),
            End::Finished | End::Holds | End::Interrupted | End::Unread => return Vec::new(),
        };
        while let Some(line) = self.lines.try_next() {
            self.pods.apply(&line);
        }
        let mut verdicts = vec![(headline, Vec::new())];
        for pod in self.pods.iter().map(|pod| &pod.name) {
            verdicts.extend(verdict::about(pod, &self.pods, &self.progress, &self.layout));
        }
        verdicts
    }

    /// Stops the pods of this run, faster when asked again, then the agent.
    async fn stop(mut self, end: End, interrupts: &mut Interrupts) {
        if !self.progress.all_ended() {
            let hint = if end == End::Interrupted {
                STOPPING_INTERRUPTED
            } else {
                STOPPING
            };
            self.stage.remark(Remark::Ending(hint));
        }
        tokio::select! {
            () = self.stop_pods(None) => return,
            () = interrupts.next() => self.stage.remark(Remark::Ending(KILLING)),
        }
        tokio::select! {
            () = self.stop_pods(Some(Duration::ZERO)) => {}
            () = interrupts.next() => {}
        }
    }

    async fn stop_pods(&mut self, grace: Option<Duration>) {
        if !self.others {
            let mode = if grace.is_some() {
                Shutdown::KillPods
            } else {
                Shutdown::StopPods
            };
            return self.node.shutdown(mode).await;
        }
        for pod in self.pods.iter() {
            // It may have gone by itself.
            let _ = self.node.delete_pod(&pod.name, grace).await;
        }
        while self.has_pods().await {
            tokio::select! {
                _ = self.feed.next() => {}
                () = self.node.ended() => {}
            }
        }
        self.node.shutdown(Shutdown::Leave).await;
    }

    /// Whether the agent still has a pod of this run.
    async fn has_pods(&self) -> bool {
        let views = self.node.pods().await.unwrap_or_default();
        views.iter().any(|view| self.pods.has(&view.pod_name()))
    }
}
