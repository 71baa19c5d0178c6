//! `pulselet simulate`: runs the engine on a virtual clock against a scenario.

use std::io::{self, Write};
use std::sync::Arc;

use pulselet_agent::pod_name_of;
use pulselet_engine::line::{Line, LineRecord};
use pulselet_engine::plan::PodPlan;
use pulselet_engine::time::{Span, Time};
use pulselet_model::{GateSet, Pod, Profile};
use pulselet_plan::NodeConfig;
use pulselet_sim::scenario::GateSkew;
use pulselet_sim::simulation::DEFAULT_LIMIT;
use pulselet_sim::timeline::{TextTimeline, Timeline, html, svg};
use pulselet_sim::{End, Scenario, Setup, Simulation};
use pulselet_vocabulary::PodName;

use crate::cli::{SimulateArgs, SimulateFormat};
use crate::diagnostics;
use crate::exit::{Exit, Failure};
use crate::input::{Gatekeeper, Source};
use crate::output;

pub(crate) fn run(args: &SimulateArgs) -> Result<Exit, Failure> {
    let config = args.node.resolve()?;
    let gates = gates(args, &config)?;
    let source = Source::read(&args.file)?;
    let Some(pod) = single_pod(&source, gates.api)? else {
        return Ok(Exit::No);
    };
    let blueprint = pulselet_plan::convert(&pod, gates.node)
        .map_err(|error| Failure::usage(format_args!("{}: {error}", source.name)))?;
    let scenario = match &args.scenario {
        Some(file) => read_scenario(file, &blueprint.plan)?,
        None => Scenario::default(),
    };
    let left = config.duties.shutdown.of(pod.spec.priority.unwrap_or(0));
    let scenario = scenario.with_time_for_shutdown(left);
    let setup = Setup::for_pod(&pod, gates, &blueprint, config.settings, args.seed, scenario);
    let limit = args.duration.unwrap_or(DEFAULT_LIMIT);
    let printer = SimulationPrinter::new(args.output, &pod, &blueprint.plan);
    let end = run_and_print(&mut Simulation::new(setup), Time::ZERO + limit, printer)?;
    if end == End::Limit && args.duration.is_none() {
        output::note("stopped after 24 simulated hours: nothing ends this pod; --for sets another limit");
    }
    Ok(Exit::Done)
}

/// The gates at the start. A file of settings is the node's; `--feature-gates` is for both.
fn gates(args: &SimulateArgs, config: &NodeConfig) -> Result<GateSkew, Failure> {
    let mut api = GateSet::default();
    for changes in [&args.node.feature_gates, &args.api_feature_gates]
        .into_iter()
        .flatten()
    {
        api = api.apply(changes).map_err(Failure::usage)?;
    }
    let node = match &args.node_feature_gates {
        Some(changes) => config.gates.apply(changes).map_err(Failure::usage)?,
        None => config.gates,
    };
    Ok(GateSkew { api, node })
}

/// The next step for a file that has another number of Pods.
const ONE_POD: &str = "give it exactly one Pod, or one workload such as a Deployment";

/// The one Pod of the file, or one of its one workload; none if it is rejected, which has been said then.
fn single_pod(source: &Source, gates: GateSet) -> Result<Option<Pod>, Failure> {
    let mut pods: Vec<Pod> = Vec::new();
    let mut rejected = false;
    source.judge(Profile::Pulselet, Gatekeeper::Api(gates), |verdict| {
        diagnostics::complain(source, &verdict);
        rejected |= verdict.outcome.is_rejected();
        // Other objects do not matter on a virtual clock. Two Pods are enough to know that there is more than one.
        let subject = verdict.outcome.into_subject().filter(|_| pods.len() < 2);
        pods.extend(subject.map(|subject| subject.pod));
        Ok(())
    })?;
    let one_pod = |cause: &str| {
        let message = format!("cannot simulate {}: it {cause}", source.name);
        Failure::usage(message).with_hint(ONE_POD)
    };
    match pods.len() {
        _ if rejected => Ok(None),
        0 => Err(one_pod("has nothing to run")),
        1 => Ok(pods.pop()),
        _ => Err(one_pod("has more than one Pod or workload")),
    }
}

fn read_scenario(file: &str, plan: &PodPlan) -> Result<Scenario, Failure> {
    let source = Source::read_as(file, "expected a scenario as YAML")?;
    Scenario::read(source.text(), plan).map_err(|error| Failure::usage(format_args!("{file}: {error}")))
}

/// Runs to the end and prints what happens in the form asked for.
fn run_and_print(
    simulation: &mut Simulation,
    limit: Time,
    mut printer: SimulationPrinter,
) -> Result<End, Failure> {
    let end = simulation.run(limit, |simulation| {
        let lines = &simulation.last_step().lines;
        output::written(lines.iter().try_for_each(|line| printer.line(line)))
    })?;
    output::written(printer.finish(simulation.now()))?;
    Ok(end)
}

type Out = io::BufWriter<anstream::AutoStream<io::StdoutLock<'static>>>;

/// Prints the lines of a simulation in the form asked for.
enum SimulationPrinter {
    Text(TextTimeline<Out>),
    Json {
        out: Out,
        pod: PodName,
    },
    Drawing {
        out: Out,
        timeline: Timeline,
        draw: fn(&Timeline) -> String,
    },
}

impl SimulationPrinter {
    fn new(format: SimulateFormat, pod: &Pod, plan: &PodPlan) -> Self {
        let out = output::stdout();
        let names = || {
            plan.containers
                .iter()
                .map(|container| Arc::clone(&container.name))
        };
        let pod = pod_name_of(pod);
        let drawing = |out, pod, draw| Self::Drawing {
            out,
            timeline: Timeline::new(pod, names()),
            draw,
        };
        match format {
            SimulateFormat::Text => {
                let names: Vec<_> = names().collect();
                Self::Text(TextTimeline::new(out, names.iter().map(|name| &**name)))
            }
            SimulateFormat::Json => Self::Json { out, pod },
            SimulateFormat::Svg => drawing(out, pod, svg),
            SimulateFormat::Html => drawing(out, pod, html),
        }
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        match self {
            Self::Text(text) => text.push(line),
            Self::Json { out, pod } => {
                let record = LineRecord {
                    t: line.at.since(Time::ZERO).as_secs_f64(),
                    time: None,
                    pod,
                    container: line.container.as_deref(),
                    body: &line.body,
                };
                serde_json::to_writer(&mut *out, &record)?;
                writeln!(out)
            }
            Self::Drawing { timeline, .. } => {
                timeline.push(line);
                Ok(())
            }
        }
    }

    fn finish(self, end: Time) -> io::Result<()> {
        match self {
            Self::Text(text) => text.finish().map(drop),
            Self::Json { mut out, .. } => out.flush(),
            Self::Drawing {
                mut out,
                timeline,
                draw,
            } => {
                out.write_all(draw(&timeline.until(end)).as_bytes())?;
                out.flush()
            }
        }
    }
}

/// `--for`.
pub(crate) fn parse_span(text: &str) -> Result<Span, String> {
    pulselet_plan::duration::parse_duration(text).map_err(|error| error.to_string())
}
