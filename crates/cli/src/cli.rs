//! The command line: every flag, once, with its help.
//!
//! Help texts, completions and the reference are generated from these types. Each command has an example.

mod cri;
mod image;
#[cfg(test)]
mod reference;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use pulselet_engine::time::Span;
use pulselet_model::gates::GateError;
use pulselet_model::{GateSet, Profile};
use pulselet_vocabulary::PodName;

use crate::completing;
use crate::output::{ColorArg, Format};
use crate::paths;
use crate::runtime::RuntimeChoice;

pub(crate) use cri::CriArgs;
pub(crate) use image::{
    ImageArgs, ImageCommand, ImageLoadArgs, ImageLsArgs, ImagePruneArgs, ImagePullArgs, ImageRmArgs,
};

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
        after_help = "Examples:\n  pulselet check pod.yaml\n  pulselet check --profile kubernetes -o json - < pods.json"
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
    /// Serve a web page of the local node: pods, live timelines, logs, and what a change would mean
    #[command(
        after_help = "Examples:\n  pulselet dashboard\n  pulselet dashboard --open\n\nIt listens on loopback only and prints its \
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
        after_help = "Examples:\n  pulselet explain pod.yaml\n  pulselet explain pod.yaml --config node.yaml -o json"
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
                            pulselet simulate pod.yaml --scenario deadlock.yaml -o html > timeline.html"
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

#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Format,
}

/// Flags of every command that takes feature gates.
#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    /// Turn feature gates on or off, such as SubSecondProbes=false; all are on by default
    #[arg(
        long,
        value_name = "A=true,B=false",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) feature_gates: GateSet,
}

/// Flags of every command that acts as a node.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node's settings, as YAML; flags win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,
    /// Turn the node's feature gates on or off, such as SubSecondProbes=false; all are on by default
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) feature_gates: Option<String>,
}

/// Flags of every command that needs the agent's directory.
#[derive(Debug, Args)]
pub(crate) struct DataDirArgs {
    /// Where the agent keeps its state, logs and socket; by default /var/lib/pulselet, and pulselet in
    /// `$XDG_STATE_HOME` for other users than root
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Who makes the networks of pods.
#[derive(Debug, Args)]
pub(crate) struct CniArgs {
    /// A directory of CNI configurations: their plugins connect the pods of `--runtime oci`, instead of the built-in
    /// bridge
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// Where CNI plugins are, separated by colons
    #[arg(
        long,
        value_name = "DIRS",
        value_delimiter = ':',
        value_parser = paths::parser(),
        default_value = "/opt/cni/bin:/usr/lib/cni",
        requires = "cni_conf_dir"
    )]
    pub(crate) cni_bin_dir: Vec<PathBuf>,
}

/// Flags of every command that runs containers.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// What containers are: `oci` (containers of images), `process` (plain host processes, no isolation),
    /// `unix:///PATH` (those of a CRI server, containerd or CRI-O, that listens there), or `auto` (those of a CRI server
    /// where one answers at a usual place, else `oci`)
    #[arg(long, value_name = "RUNTIME", default_value = "oci")]
    pub(crate) runtime: RuntimeChoice,
    #[command(flatten)]
    pub(crate) cni: CniArgs,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// Checks gate settings without applying them: what they are applied to is known later.
fn parse_gates(settings: &str) -> Result<String, GateError> {
    GateSet::default().apply(settings)?;
    Ok(settings.to_owned())
}

/// Whose rules a manifest is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    /// Upstream's rules and the fields that only Pulselet has
    Pulselet,
    /// Exactly what a Kubernetes v1.36 API server answers
    Kubernetes,
}

impl From<ProfileArg> for Profile {
    fn from(profile: ProfileArg) -> Self {
        match profile {
            ProfileArg::Pulselet => Self::Pulselet,
            ProfileArg::Kubernetes => Self::Kubernetes,
        }
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ApiArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ApiCommand>,
    #[command(flatten)]
    pub(crate) serve: ApiServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApiCommand {
    /// Print a kubeconfig with which a node can join
    #[command(
        after_help = "Example:\n  pulselet api kubeconfig --node worker-1 --server https://10.0.0.1:6443 > \
                            worker-1.kubeconfig\n\nIt holds a key: whoever has the file is that node."
    )]
    Kubeconfig(ApiKubeconfigArgs),
    /// Print a kubeconfig with which nodes ask for certificates of their own
    #[command(
        after_help = "Example:\n  pulselet api bootstrap-kubeconfig --server https://10.0.0.1:6443 > join.kubeconfig\n  \
                            pulselet node --bootstrap-kubeconfig join.kubeconfig\n\nIt holds a key: whoever has the \
                            file can join as any node while it lasts."
    )]
    BootstrapKubeconfig(ApiBootstrapKubeconfigArgs),
    /// Copy the store into a file, also while a server uses it
    #[command(
        after_help = "Example:\n  pulselet api backup api-backup.db\n\nIt holds every secret of the API. A file \
                            that is there is never overwritten."
    )]
    Backup(ApiBackupArgs),
    /// Put a backup in the place of the store
    #[command(
        after_help = "Example:\n  pulselet api restore api-backup.db\n\nThe server must be stopped. The store that \
                            was there is kept beside it. Pods that the backup does not have are ended by their nodes."
    )]
    Restore(ApiRestoreArgs),
    /// Look whether the store is whole, also while a server uses it
    #[command(
        after_help = "Exit code 1 if something is damaged: restore a backup, or delete the objects that are named."
    )]
    Check(ApiCheckArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ApiBackupArgs {
    /// The file to make
    #[arg(value_name = "FILE", value_parser = paths::parser())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiRestoreArgs {
    /// The backup
    #[arg(value_name = "FILE", value_parser = paths::parser())]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiCheckArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiKubeconfigArgs {
    /// The name of the node
    #[arg(long, value_name = "NAME", value_parser = parse_node_name)]
    pub(crate) node: String,
    /// Where the node reaches the API; by default where the server's own machine does
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiBootstrapKubeconfigArgs {
    /// Where nodes reach the API; by default where the server's own machine does
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// For how many days it can be used
    #[arg(long, value_name = "DAYS", default_value = "1", value_parser = clap::value_parser!(i16).range(1..=365))]
    pub(crate) days: i16,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApiServeArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Whose rules apply to Pods
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    /// Bind pods that name no node to one; without it that is left to a scheduler
    #[arg(long)]
    pub(crate) bind_pods: bool,
    /// Record who changed what and who was refused in this file, as lines of JSON; it is put aside when it is full
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) audit_log: Option<PathBuf>,
    /// Begin with an empty store although one was there, which is put aside; every pod that it knew is ended
    #[arg(long)]
    pub(crate) new_store: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDirArgs,
    #[command(flatten)]
    pub(crate) gates: GateArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Whose rules apply
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    #[command(flatten)]
    pub(crate) gates: GateArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// The port on 127.0.0.1; 0 is one that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Open it in this machine's browser
    #[arg(long)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to, a directory that is there
    #[arg(value_name = "DIR", value_parser = paths::parser())]
    pub(crate) directory: PathBuf,
}

/// All ages count from the start of the process.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to answer http, gRPC health checks and plain connections; without it nothing listens
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Speak TLS, with a certificate made for this run
    #[arg(long)]
    pub(crate) tls: bool,
    /// Answer every http request with a redirect to this address
    #[arg(long, value_name = "URL")]
    pub(crate) redirect_to: Option<String>,
    /// A file that is there while the demo is healthy, for exec probes
    #[arg(long, value_name = "PATH")]
    pub(crate) health_file: Option<PathBuf>,
    /// Listen only from this age on
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) start_after: Duration,
    /// From this age on answer that it is not well
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) fail_at: Option<Duration>,
    /// From this age on take connections and never answer
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) deadlock_at: Option<Duration>,
    /// From this age on be well again
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) recover_at: Option<Duration>,
    /// Leave at this age
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) exit_at: Option<Duration>,
    /// The exit code when leaving at an age
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) exit_code: u8,
    /// How long it takes from a signal to the exit
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::commands::parse_age)]
    pub(crate) stop_in: Duration,
    /// Do not leave on this signal; may be repeated
    #[arg(long, value_name = "SIGNAL")]
    pub(crate) ignore: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// The container; not needed where the pod has only one
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    /// Pass stdin on
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Give the command a terminal, with the size of this one
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Only this pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: Option<PodName>,
    /// Only this container
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct LogsArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// The container; not needed where the pod has only one
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    /// Those of all containers, each line with the name of its own
    #[arg(long, conflicts_with = "container")]
    pub(crate) all_containers: bool,
    /// Go on printing, through restarts, until the container does not run again
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The life before the last restart
    #[arg(short, long)]
    pub(crate) previous: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Only what was written in the time before now, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = crate::commands::parse_age)]
    pub(crate) since: Option<Duration>,
    /// Begin each line with its time
    #[arg(long)]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("source").args(["manifests", "kubeconfig", "bootstrap_kubeconfig"]).required(true).multiple(true))]
pub(crate) struct NodeCommandArgs {
    /// A directory of manifests: files that appear, change or go are followed
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) manifests: Option<PathBuf>,
    /// Join the API server that this file names, ours or another
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Join by asking the API server that this file names for certificates, which are kept and renewed
    #[arg(long, value_name = "FILE", value_parser = paths::parser(), conflicts_with = "kubeconfig")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// Where to serve /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10255")]
    pub(crate) metrics: String,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Flags of every node that is joined to an API.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// What the node is called at the API; by default the name of this machine
    #[arg(long, value_name = "NAME", value_parser = parse_node_name)]
    pub(crate) node_name: Option<String>,
    /// Where the API reaches the node for logs and commands; port 0 is one that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10250")]
    pub(crate) node_listen: SocketAddr,
    /// A name server of the cluster, for pods whose `dnsPolicy` asks for it; up to three, or separated by commas. Wins over
    /// `clusterDNS` of the settings
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// Under which domain the names of services are; wins over `clusterDomain` of the settings, and is cluster.local if
    /// nobody says otherwise
    #[arg(long, value_name = "DOMAIN", value_parser = pulselet_plan::parse_cluster_domain)]
    pub(crate) cluster_domain: Option<String>,
}

/// A node's name is part of its credentials and of object names.
pub(crate) fn parse_node_name(name: &str) -> Result<String, &'static str> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let fits = name.len() <= 253 && name.bytes().all(is_plain);
    if fits && edge(name.bytes().next()) && edge(name.bytes().last()) {
        Ok(name.to_owned())
    } else {
        Err("a node's name consists of lower case letters, digits, '-' and '.'")
    }
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where the API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Whose rules apply to Pods
    #[arg(long, value_name = "PROFILE", default_value = "pulselet")]
    pub(crate) profile: ProfileArg,
    /// Record who changed what and who was refused in this file, as lines of JSON; it is put aside when it is full
    #[arg(long, value_name = "FILE", value_parser = paths::parser())]
    pub(crate) audit_log: Option<PathBuf>,
    /// A directory of manifests: static pods, which the API shows
    #[arg(long, value_name = "DIR", value_parser = paths::parser())]
    pub(crate) manifests: Option<PathBuf>,
    /// Begin with an empty store although one was there, which is put aside; every pod that it knew is ended
    #[arg(long)]
    pub(crate) new_store: bool,
    #[command(flatten)]
    pub(crate) member: MemberArgs,
    /// Where to serve the node's /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10255")]
    pub(crate) metrics: String,
    /// Feature gates of the API alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) api_feature_gates: Option<String>,
    /// Feature gates of the node alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) node_feature_gates: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: PsFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PsFormat {
    Text,
    /// With address, ports, image, stop signal, period/timeout of every probe, and message
    Wide,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// The CRI server that has pods of the directory, where it is not at a usual place: `unix:///PATH`
    #[arg(long, value_name = "RUNTIME", default_value = "auto")]
    pub(crate) runtime: RuntimeChoice,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: PodName,
    /// Only this container
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(completing::containers))]
    pub(crate) container: Option<String>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The pods: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", required = true, add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pods: Vec<PodName>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only this pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pod: Option<PodName>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Manifests: YAML, JSON or a stream of JSON objects; `-` is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Stop as soon as this holds, or can no longer hold, and say which: `ready` (all pods are ready at once, none has
    /// ended with an error), `stable=5s` (they stay so for that long, without a restart), `completed` (all have succeeded)
    #[arg(long, value_name = "WHAT")]
    pub(crate) wait: Option<WaitArg>,
    /// How long --wait waits
    #[arg(long, value_name = "DURATION", default_value = "60s", requires = "wait", value_parser = crate::commands::parse_age)]
    pub(crate) timeout: Duration,
    /// Hand the pods to the local agent and return
    #[arg(long, conflicts_with_all = ["wait", "metrics", "no_logs"])]
    pub(crate) detach: bool,
    /// Do not show what containers print; `pulselet logs` has it, also after the run
    #[arg(long)]
    pub(crate) no_logs: bool,
    /// Where to serve /healthz, /readyz and /metrics; without it nowhere
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What `--wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitArg {
    Ready,
    /// Ready for this long.
    Stable(Duration),
    Completed,
}

impl FromStr for WaitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "ready" => Ok(Self::Ready),
            None if text == "completed" => Ok(Self::Completed),
            Some(("stable", lasting)) => crate::commands::parse_age(lasting).map(Self::Stable),
            None | Some(_) => Err("expected ready, stable=DURATION or completed".to_owned()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A manifest with exactly one Pod: YAML or JSON; `-` is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// How the containers behave, as YAML; without it all are healthy from their start
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: Option<String>,
    /// How long to simulate, such as 90s or 1h; without it until nothing more happens, 24h at most
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::commands::parse_span)]
    pub(crate) duration: Option<Span>,
    /// What every random choice is made from
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Feature gates of the API alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) api_feature_gates: Option<String>,
    /// Feature gates of the node alone, over those of --feature-gates
    #[arg(long, value_name = "A=true,B=false", value_parser = parse_gates)]
    pub(crate) node_feature_gates: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: SimulateFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SimulateFormat {
    /// A timeline to read, with runs of equal probes folded
    Text,
    /// Event lines, one JSON object each
    Json,
    /// A drawing
    Svg,
    /// A page with the drawing, to hover over and to zoom
    Html,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The pods: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD", required_unless_present = "all", conflicts_with = "all", add = ArgValueCompleter::new(completing::pods))]
    pub(crate) pods: Vec<PodName>,
    /// All pods
    #[arg(long)]
    pub(crate) all: bool,
    /// Forget them too; one whose file is still in the agent's --manifests directory comes back with it
    #[arg(long)]
    pub(crate) remove: bool,
    /// Seconds until they are killed; without it each pod's own
    #[arg(long, value_name = "SECONDS")]
    pub(crate) grace_period: Option<u64>,
    #[command(flatten)]
    pub(crate) data: DataDirArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
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
