//! The command line: every flag, once, with its help.
//!
//! Help texts, completions and the reference are generated from these types. Each command has an example. The list of
//! commands is here; the flags of each are with those of its kind.

mod about;
mod api;
mod cri;
mod dashboard;
mod demo;
mod image;
mod manifests;
mod node;
mod pods;
#[cfg(test)]
mod reference;
mod run;
mod shared;

use clap::{Args, Parser, Subcommand};

use crate::output::ColorArg;

pub(crate) use about::{CompletionArgs, ManArgs, VersionArgs};
pub(crate) use api::{
    ApiArgs, ApiBackupArgs, ApiBootstrapKubeconfigArgs, ApiCheckArgs, ApiCommand, ApiKubeconfigArgs,
    ApiRestoreArgs, ApiServeArgs, EtcdArgs,
};
pub(crate) use cri::CriArgs;
pub(crate) use dashboard::DashboardArgs;
pub(crate) use demo::DemoArgs;
pub(crate) use image::{
    ImageArgs, ImageCommand, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs,
};
pub(crate) use manifests::{CheckArgs, ExplainArgs, SimulateArgs, SimulateFormat};
pub(crate) use node::{MemberArgs, NodeCommandArgs, ServeArgs, parse_node_name};
pub(crate) use pods::{
    ExecArgs, HistoryArgs, LogsArgs, PsArgs, PsFormat, ResetArgs, RestartArgs, StartArgs, StopArgs, TopArgs,
};
pub(crate) use run::{RunArgs, WaitArg};
pub(crate) use shared::{AgentArgs, CniArgs, DataDirArgs, NodeArgs, OutputArgs};

/// Runs Kubernetes Pod manifests on this machine and keeps them healthy.
#[derive(Debug, Parser)]
#[command(name = "pulselet", version, propagate_version = false, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 the answer is no, 2 usage or unreadable input, 3 the environment is \
                        missing something, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// When to use colour; `NO_COLOR` is honoured
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        display_order = 900
    )]
    pub(crate) color: ColorArg,
    /// Say more on stderr; repeat for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 901)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the Kubernetes API for kubectl and other clients
    #[command(
        after_help = "Examples:\n  pulselet api\n  pulselet api --listen 127.0.0.1:7443 --data-dir ./api --profile \
                            kubernetes\n  pulselet api kubeconfig --node worker-1 --server https://10.0.0.1:6443 > \
                            worker-1.kubeconfig\n\nPrints where the administrator's kubeconfig is."
    )]
    Api(ApiArgs),
    /// Say whether manifests would be admitted, and what is wrong with those that would not
    #[command(
        after_help = "Examples:\n  pulselet check pod.yaml\n  pulselet check --strict deployment.yaml\n  pulselet check \
                            --profile kubernetes -o json - < pods.json\n\nIt reads Pods, the kinds with a pod template \
                            (Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, ReplicationController, \
                            PodTemplate), Service, PersistentVolumeClaim, ConfigMap, Secret, ServiceAccount and \
                            Namespace. Other kinds are skipped with a warning."
    )]
    Check(CheckArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  pulselet completion bash > /etc/bash_completion.d/pulselet")]
    Completion(CompletionArgs),
    /// Serve the built-in containers to a kubelet, over CRI
    #[command(
        after_help = "Examples:\n  pulselet cri\n  pulselet cri --listen unix:///run/pulselet/cri.sock --bridge\n  \
                            pulselet cri --registry-mirror docker.io=https://mirror.example.com\n\nThe kubelet's \
                            setting is `containerRuntimeEndpoint: unix:///run/pulselet/cri.sock`. Containers run on when \
                            the server ends, and the next one goes on with them."
    )]
    Cri(CriArgs),
    /// Serve a web page of the local node, or of a namespace at an API: pods, live timelines, logs, what a change would mean
    #[command(
        after_help = "Examples:\n  pulselet dashboard\n  pulselet dashboard --open\n  pulselet dashboard --kubeconfig \
                            ~/.kube/config --namespace shop\n\nIt listens on loopback only and prints its \
                            address, which opens one browser, once. It changes nothing; Ctrl-C ends it."
    )]
    Dashboard(DashboardArgs),
    /// Run a small server that starts slowly, hangs, fails or leaves when told to
    #[command(after_help = "Examples:\n  pulselet demo --port 8080 --start-after 20s\n  \
                            pulselet demo --port 8080 --deadlock-at 1m --ignore SIGTERM")]
    Demo(DemoArgs),
    /// Run a command in a container of the local agent
    #[command(
        after_help = "Examples:\n  pulselet exec web -- ls /\n  pulselet exec web -c app -it -- sh\n\nThe exit code is \
                            the command's. Ctrl-C ends the command; with -t it gets the key instead."
    )]
    Exec(ExecArgs),
    /// Say what timing a manifest implies: start-up budget, detection, time to kill, and what to improve
    #[command(
        after_help = "Examples:\n  pulselet explain pod.yaml\n  pulselet explain deployment.yaml --config node.yaml -o \
                            json\n\nOf a workload such as a Deployment or a Job it explains the pod template."
    )]
    Explain(ExplainArgs),
    /// Show how containers ended: exits and waits, and for a kill the probes that led to it, the grace period, the signal
    #[command(
        after_help = "Examples:\n  pulselet history\n  pulselet history web -o json\n\nAs text, it ends with how each \
                            container that is there is probed and stopped now, if an agent runs."
    )]
    History(HistoryArgs),
    /// Load, pull, list and remove the images of the built-in runtime
    #[command(
        after_help = "Examples:\n  pulselet image pull busybox\n  pulselet image load app.tar\n  pulselet image ls"
    )]
    Image(ImageArgs),
    /// Print the log of a container
    #[command(
        after_help = "Examples:\n  pulselet logs web -f\n  pulselet logs kube-system/dns -c cache --previous --tail 20\n  \
                            pulselet logs web --all-containers --since 10m\n\nIt needs no agent: what a run has \
                            left is shown until the next run."
    )]
    Logs(LogsArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Run the pods of a directory of manifests, of an API server, or of both, as a service
    #[command(
        after_help = "Examples:\n  pulselet node --manifests /etc/pulselet/manifests\n  pulselet node --kubeconfig \
                            node.kubeconfig --node-name worker-1\n\nContainers run on when the agent \
                            ends, and the next one goes on with them."
    )]
    Node(NodeCommandArgs),
    /// List the containers of the local agent
    #[command(after_help = "Examples:\n  pulselet ps\n  pulselet ps -o wide")]
    Ps(PsArgs),
    /// End all pods of a data directory and remove everything that was put on this machine for it
    #[command(
        after_help = "Examples:\n  pulselet reset\n  pulselet reset --data-dir ./data --yes\n\nIt lists what goes and asks \
                            first. It works without an agent, and refuses while one runs: stop that first, such as with \
                            `systemctl stop pulselet`."
    )]
    Reset(ResetArgs),
    /// Give containers of the local agent another life, in the pod they are in
    #[command(
        after_help = "Examples:\n  pulselet restart web\n  pulselet restart kube-system/dns -c cache\n\nThey \
                            are stopped with the pod's grace period, and start again at once."
    )]
    Restart(RestartArgs),
    /// Run pods in the foreground, and stop them at the end
    #[command(
        after_help = "Examples:\n  pulselet run pod.yaml\n  pulselet run pod.yaml --wait ready --timeout 30s\n  \
                            pulselet run job.yaml --wait completed\n  \
                            pulselet run pod.yaml --runtime process -o json\n\nCtrl-C stops the pods gracefully, a second \
                            one kills them. What containers print is shown as `NAME | text`, with -o json on stderr; \
                            `pulselet logs` has it until the next run. Without --wait the exit code is that of the first \
                            container that failed. Without a terminal, equal probes in a row are printed once; -v prints \
                            them all."
    )]
    Run(RunArgs),
    /// Serve the Kubernetes API and run its pods on this machine
    #[command(
        after_help = "Examples:\n  pulselet serve\n  pulselet serve --runtime process --data-dir ./data --listen \
                            127.0.0.1:7443\n\nPrints where the administrator's kubeconfig is. Containers run on when it \
                            ends, and the next one goes on with them."
    )]
    Serve(ServeArgs),
    /// Run a manifest on a virtual clock and print what happens
    #[command(
        after_help = "Examples:\n  pulselet simulate pod.yaml --scenario deadlock.yaml --for 1h\n  \
                            pulselet simulate deployment.yaml --scenario deadlock.yaml -o html > timeline.html\n\nOf a workload \
                            such as a Deployment or a Job it runs one pod of the template."
    )]
    Simulate(SimulateArgs),
    /// Run pods again that were stopped
    #[command(after_help = "Example:\n  pulselet start web")]
    Start(StartArgs),
    /// Stop pods of the local agent until `pulselet start`, and wait until nothing of them runs
    #[command(
        after_help = "Examples:\n  pulselet stop web\n  pulselet stop --all --grace-period 5\n\nA stopped pod stays \
                            listed, and stopped, whatever becomes of the agent or the machine. Those of a `run` are \
                            gone, which ends the run. Those of an API are refused: kubectl deletes them."
    )]
    Stop(StopArgs),
    /// Show what the containers of the local agent use
    #[command(after_help = "Examples:\n  pulselet top\n  pulselet top web -o json")]
    Top(TopArgs),
    /// Print the version
    #[command(after_help = "Example:\n  pulselet version -o json")]
    Version(VersionArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
        }
    }
}
