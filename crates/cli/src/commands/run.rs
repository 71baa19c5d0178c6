//! `pulselet run`: an agent in the foreground that runs the pods of files and stops them at its end.
//!
//! A run ends when its pods have, when it is interrupted, when what it waited for has come or is late, or when nobody
//! reads its output any more. Its pods are stopped in every case. Pods of the directory that came from elsewhere (an
//! earlier `node`) are adopted, kept running and left as they were.

mod live;
mod progress;
mod stage;
mod state;
mod text;
mod view;

use std::io::Write as _;
use std::time::Duration;

use pulselet_agent::{
    FULL_BACKLOG, Feed, FeedChange, How, LineHub, Lines, NodeHandle, Origin, Shutdown, pod_name_of,
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
use crate::logging::{self, Quietness};
use crate::output::{self, Format};
use progress::Progress;
use stage::{Remark, Stage};
use state::Pods;

pub(crate) use text::printable;
pub(crate) use view::age;

/// How long tasks that are still under way at the end may take; the pods are stopped by then.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
const STOPPING: &str = "stopping the pods gracefully; Ctrl-C again kills them";
const KILLING: &str = "killing the pods; Ctrl-C again leaves what is left of them to the next run";

pub(crate) fn run(args: &RunArgs, verbose: u8) -> Result<Exit, Failure> {
    let mut config = args.agent.node.resolve()?;
    // The pods are those of who runs this, who can read the machine's files anyway.
    config.host_image.get_or_insert(true);
    let Some(pods) = read(&args.files, &config)? else {
        return Ok(Exit::No);
    };
    if args.detach {
        return agent::small_executor()?.block_on(detach(args, &pods));
    }
    let lines = LineHub::default();
    let states = Pods::new(&pods);
    // For what is said at the end; the stage has lines of its own.
    let watched = lines.subscribe(FULL_BACKLOG);
    let stage = Stage::open(args.output.output, verbose > 0, &lines, &states)?;
    logging::start(Quietness::Foreground, verbose, stage.log_writer());
    let executor = agent::executor()?;
    let setting = Setting {
        config,
        lines,
        feed: Some(Feed::default()),
        metrics: args.metrics.clone(),
        manifests: None,
        application: None,
    };
    let ended = executor.block_on(foreground(args, setting, pods, states, watched, &stage));
    // The hub goes with the agent's tasks, and the stage ends with the hub.
    executor.shutdown_timeout(LEAVE_TIMEOUT);
    stage.close()?;
    let (exit, remarks) = ended?;
    for remark in remarks {
        output::error(&remark, None);
    }
    Ok(exit)
}

/// The pods of all files; none if one is rejected, which has been said then.
fn read(files: &[String], config: &NodeConfig) -> Result<Option<Vec<Pod>>, Failure> {
    let mut pods: Vec<Pod> = Vec::new();
    let mut rejected = false;
    for file in files {
        let source = Source::read(file)?;
        source.judge(Profile::Pulselet, Gatekeeper::Node(config.gates), |verdict| {
            diagnostics::complain(&source, &verdict);
            match verdict.outcome {
                Outcome::Accepted(admission, _) => pods.push(admission.pod),
                Outcome::Invalid(_) | Outcome::Undecodable(_) => rejected = true,
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
    Ok((!rejected).then_some(pods))
}

/// Hands the pods over and says what became of each.
async fn detach(args: &RunArgs, pods: &[Pod]) -> Result<Exit, Failure> {
    let client = args.agent.data.client()?;
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

/// Runs the pods to the end of the run. Returns how it ended and what to say about it.
async fn foreground(
    args: &RunArgs,
    setting: Setting,
    pods: Vec<Pod>,
    states: Pods,
    lines: Lines,
    stage: &Stage,
) -> Result<(Exit, Vec<String>), Failure> {
    let mut interrupts = Interrupts::listen()?;
    let feed = setting.feed.clone().unwrap_or_default();
    let started = agent::start(&args.agent, setting).await?;
    if let Some(warning) = started.warning {
        stage.remark(Remark::Say(warning.to_owned()));
    }
    let mut run = Run {
        node: started.node,
        progress: Progress::new(&pods),
        pods: states,
        feed,
        lines,
        stage,
        others: false,
    };
    run.take(pods).await?;
    let deadline = args.wait.map(|WaitArg::Ready| Instant::now() + args.timeout);
    let end = run.watch(&mut interrupts, deadline).await;
    let remarks = run.remarks(end, args.timeout);
    let exit = run.exit(end);
    run.stop(&mut interrupts).await;
    Ok((exit, remarks))
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All pods have ended.
    Finished,
    /// All pods are ready, which was waited for.
    Ready,
    /// A pod has ended that was to be ready.
    NeverReady,
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
        for view in self.node.pods().await.map_err(Failure::environment)? {
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
            self.progress.update(view);
        }
        self.stage.remark(Remark::Pods(views));
        Ok(())
    }

    async fn watch(&mut self, interrupts: &mut Interrupts, deadline: Option<Instant>) -> End {
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let mut late = std::pin::pin!(late);
        loop {
            if let Some(end) = self.is_over(deadline.is_some()) {
                return end;
            }
            tokio::select! {
                change = self.feed.next() => self.follow(change).await,
                line = self.lines.next() => match line {
                    Some(line) => self.pods.apply(&line),
                    // The agent has ended although nobody asked it to.
                    None => return End::Unread,
                },
                () = interrupts.next() => return End::Interrupted,
                () = &mut late => return End::Late,
                () = self.stage.closed() => return End::Unread,
            }
        }
    }

    /// Looks at the pods that have changed.
    async fn follow(&mut self, change: FeedChange) {
        for name in change.changed.iter().filter(|name| self.pods.has(name)) {
            // A node that is gone has closed its lines, which ends the run.
            if let Ok(Some(view)) = self.node.pod(name).await {
                self.progress.update(&view);
            }
        }
        for last in &change.departed {
            self.progress.departed(last);
        }
    }

    fn is_over(&self, waits: bool) -> Option<End> {
        if waits && self.progress.all_ready() {
            return Some(End::Ready);
        }
        if waits && self.progress.any_ended() {
            return Some(End::NeverReady);
        }
        self.progress.all_ended().then_some(End::Finished)
    }

    fn exit(&self, end: End) -> Exit {
        match end {
            End::Finished if self.progress.any_failed() => Exit::No,
            End::Finished | End::Ready | End::Unread => Exit::Done,
            End::NeverReady | End::Late => Exit::No,
            End::Interrupted => Exit::Interrupted,
        }
    }

    /// What a person should know about this end.
    fn remarks(&mut self, end: End, timeout: Duration) -> Vec<String> {
        let headline = match end {
            End::Late => {
                let after = pulselet_plan::duration::format_duration(timeout.into());
                format!("not all pods are ready after {after}")
            }
            End::NeverReady => "a pod has ended without being ready".to_owned(),
            End::Finished | End::Ready | End::Interrupted | End::Unread => return Vec::new(),
        };
        while let Some(line) = self.lines.try_next() {
            self.pods.apply(&line);
        }
        let missing = self.pods.missing(|name| self.progress.end_of(name));
        std::iter::once(headline).chain(missing).collect()
    }

    /// Stops the pods of this run, faster when asked again, then the agent.
    async fn stop(mut self, interrupts: &mut Interrupts) {
        if !self.progress.all_ended() {
            self.stage.remark(Remark::Ending(STOPPING));
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
