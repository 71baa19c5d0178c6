//! `pulselet stop`: stops pods of the local agent and waits until nothing of them runs. They stay known, and stopped, until
//! `pulselet start`; those of a run are gone.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use pulselet_agent::PodView;
use pulselet_agent::control::{ControlClient, ControlClientError, LineStream};
use pulselet_vocabulary::PodName;
use serde_json::Value;

use crate::agent;
use crate::cli::StopArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::output;

pub(crate) fn run(args: &StopArgs) -> Result<Exit, Failure> {
    agent::small_executor()?.block_on(stop(args))
}

async fn stop(args: &StopArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let mut interrupts = Interrupts::listen()?;
    // Listening before asking: no deletion is missed.
    let mut lines = client.lines().await?;
    let mut left = pods(args, &client).await?;
    let mut refused = false;
    for pod in left.clone() {
        match delete(args, &client, &pod).await {
            Ok(()) => {}
            Err(ControlClientError::Refused {
                status: 404 | 409,
                error,
            }) => {
                output::error(&error, None);
                left.remove(&pod);
                refused = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    loop {
        let there = names(&client).await;
        // An agent that is gone has no pods: a run ends with its last one.
        for pod in left.extract_if(.., |pod| !there.contains(pod)) {
            let mut out = output::stdout();
            output::written(writeln!(out, "pod {pod} stopped").and_then(|()| out.flush()))?;
        }
        if left.is_empty() {
            return Ok(if refused { Exit::No } else { Exit::Done });
        }
        tokio::select! {
            () = a_deletion(&mut lines) => {}
            () = interrupts.next() => {
                output::note("the pods go on stopping");
                return Ok(Exit::Interrupted);
            }
        }
    }
}

/// Waits until a pod is gone, or the agent.
async fn a_deletion(lines: &mut LineStream) {
    while let Ok(Some(line)) = lines.next().await {
        let deleted = |line: &Value| line["type"] == "deleted";
        if serde_json::from_str(&line).is_ok_and(|line| deleted(&line)) {
            return;
        }
    }
}

async fn delete(args: &StopArgs, client: &ControlClient, pod: &PodName) -> Result<(), ControlClientError> {
    let grace = args.grace_period.map(Duration::from_secs);
    client.stop(pod, grace, args.remove).await
}

async fn pods(args: &StopArgs, client: &ControlClient) -> Result<BTreeSet<PodName>, Failure> {
    if args.all {
        let views = client.pods().await?;
        let wanted = views.iter().filter(|view| args.remove || !view.stopped);
        return Ok(wanted.map(PodView::pod_name).collect());
    }
    Ok(args.pods.iter().cloned().collect())
}

/// The pods of which something runs; none where there is no agent.
async fn names(client: &ControlClient) -> BTreeSet<PodName> {
    let views = client.pods().await.unwrap_or_default();
    let running = views.iter().filter(|view| !view.stopped);
    running.map(PodView::pod_name).collect()
}
