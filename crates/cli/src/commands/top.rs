//! `pulselet top`: what the containers of the local agent use.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::table;
use crate::agent;
use crate::cli::TopArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

const HEADINGS: [&str; 4] = ["POD", "CONTAINER", "CPU", "MEMORY"];

/// A kubelet's summary, as far as it is shown.
#[derive(Debug, Deserialize)]
struct Summary {
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodReference,
    #[serde(default)]
    containers: Vec<ContainerUse>,
}

#[derive(Debug, Deserialize)]
struct PodReference {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct ContainerUse {
    name: String,
    cpu: Option<CpuUse>,
    memory: Option<MemoryUse>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuUse {
    usage_nano_cores: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryUse {
    working_set_bytes: Option<u64>,
}

/// One line of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    pod: String,
    container: String,
    cpu_nano_cores: Option<u64>,
    memory_bytes: Option<u64>,
}

pub(crate) fn run(args: &TopArgs) -> Result<Exit, Failure> {
    let client = args.data.client()?;
    let summary: Summary = agent::small_executor()?.block_on(client.usage())?;
    let wanted = |pod: &String| args.pod.as_ref().is_none_or(|name| name.to_string() == *pod);
    let lines: Vec<Line> = lines(summary).filter(|line| wanted(&line.pod)).collect();
    if let (Some(pod), true) = (&args.pod, lines.is_empty()) {
        return Err(
            Failure::no(format_args!("no container of a pod {pod} is measured"))
                .with_hint("`pulselet ps` lists the pods; host processes are not measured"),
        );
    }
    let mut out = output::stdout();
    output::written(match args.output.output {
        Format::Text => print_table(&mut out, &lines),
        Format::Json => print_json(&mut out, &lines),
    })?;
    Ok(Exit::Done)
}

fn lines(summary: Summary) -> impl Iterator<Item = Line> {
    summary.pods.into_iter().flat_map(|pod| {
        let name = format!("{}/{}", pod.pod_ref.namespace, pod.pod_ref.name);
        pod.containers.into_iter().map(move |container| Line {
            pod: name.clone(),
            container: container.name,
            cpu_nano_cores: container.cpu.and_then(|cpu| cpu.usage_nano_cores),
            memory_bytes: container.memory.and_then(|memory| memory.working_set_bytes),
        })
    })
}

fn print_json(out: &mut impl Write, lines: &[Line]) -> io::Result<()> {
    for line in lines {
        serde_json::to_writer(&mut *out, line)?;
        writeln!(out)?;
    }
    out.flush()
}

fn print_table(out: &mut impl Write, lines: &[Line]) -> io::Result<()> {
    let unknown = || "-".to_owned();
    let rows = lines.iter().map(|line| {
        vec![
            line.pod.clone(),
            line.container.clone(),
            line.cpu_nano_cores.map_or_else(unknown, cpu),
            line.memory_bytes.map_or_else(unknown, memory),
        ]
    });
    table::print(out, &HEADINGS, &rows.collect::<Vec<_>>())
}

/// In thousandths of a processor, as `kubectl top` has it.
fn cpu(nano_cores: u64) -> String {
    format!("{}m", nano_cores.div_ceil(1_000_000))
}

fn memory(bytes: u64) -> String {
    format!("{}Mi", bytes.div_ceil(1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_becomes_rows() {
        let summary = r#"{"node": {}, "pods": [{"podRef": {"name": "web", "namespace": "default"}, "containers": [
            {"name": "app", "cpu": {"usageNanoCores": 1500000}, "memory": {"workingSetBytes": 1048577}}, {"name": "b"}]}]}"#;
        let lines: Vec<Line> = lines(serde_json::from_str(summary).unwrap()).collect();
        let mut out = Vec::new();
        print_table(&mut out, &lines).unwrap();
        let text = anstream::adapter::strip_bytes(&out).into_vec();
        insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r"
        POD          CONTAINER  CPU  MEMORY
        default/web  app        2m   2Mi
        default/web  b          -    -
        ");
    }
}
