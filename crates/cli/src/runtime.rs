//! The one place where a container runtime is chosen and opened, and where the shims of its containers begin.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use pulselet_cri_client::{ConnectError, CriOpenError, CriOptions, CriRuntime, USUAL_SOCKETS};
use pulselet_image::{ImageStore, ParseMirrorError, RegistryMirror};
use pulselet_plan::NodeConfig;
use pulselet_runtime::Runtime;
use pulselet_runtime_oci::{CniOptions, NetworkOptions, OciOptions, OciRuntime, PodNetwork};
use pulselet_runtime_process::{ProcessRuntime, ShimCommand};

use crate::cli::{CniArgs, CriArgs};
use crate::commands::open_store;
use crate::data_dir;
use crate::exit::Failure;
use crate::output;

/// The hidden subcommand that a container's shim runs as; the runtime's name follows it.
const SHIM: &str = "shim";

/// `--runtime`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuntimeChoice {
    BuiltIn(BuiltIn),
    /// A CRI server's socket.
    Cri(PathBuf),
    /// A CRI server at one of the usual places, else the built-in containers.
    Auto,
}

/// The runtimes whose containers have a shim of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuiltIn {
    Oci,
    Process,
}

/// Why mirrors are of no use with a CRI server.
const OTHERS_PULL: &str = "a CRI server pulls its images itself";
/// Where what belongs to a CRI server is kept, below the data directory.
const CRI: &str = "cri";
const AUTO: &str = "auto";
const SOCKET: &str = "unix://";

/// A runtime, and the network that it makes for pods.
#[derive(Debug)]
pub(crate) struct OpenRuntime {
    pub(crate) runtime: Arc<dyn Runtime>,
    /// `None` if others make it: a CRI server or plugins, or if the pods have the host's.
    pub(crate) network: Option<PodNetwork>,
}

impl OpenRuntime {
    fn without_network(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            network: None,
        }
    }
}

/// Where the images of pods come from.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImageSettings {
    /// Whether pods may use the image of the machine's own files.
    pub(crate) host_image: bool,
    pub(crate) mirrors: Vec<RegistryMirror>,
}

impl ImageSettings {
    pub(crate) fn new(config: &NodeConfig) -> Result<Self, Failure> {
        let mirror = |text: &String| {
            text.parse()
                .map_err(|error: ParseMirrorError| Failure::usage(format_args!("registryMirrors: {error}")))
        };
        let mirrors = config
            .registry_mirrors
            .iter()
            .map(mirror)
            .collect::<Result<_, _>>();
        Ok(Self {
            // Who gives pods to a service may not be who may read the machine's files.
            host_image: config.host_image.unwrap_or(false),
            mirrors: mirrors?,
        })
    }

    /// Refuses mirrors that nobody would ask.
    fn refuse_mirrors(&self, why: &str) -> Result<(), Failure> {
        if self.mirrors.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(format_args!(
            "registryMirrors needs --runtime oci: {why}"
        )))
    }
}

impl RuntimeChoice {
    /// Opens the runtime below a data directory that the caller has claimed.
    pub(crate) async fn open(
        &self,
        data_dir: &Path,
        cni: &CniArgs,
        images: ImageSettings,
    ) -> Result<OpenRuntime, Failure> {
        // Where this user may not, there is no agent of the machine's that he could tell.
        let _ = pulselet_runtime_oci::announce_data_dir(data_dir);
        match self {
            Self::BuiltIn(built_in) => built_in.open(data_dir, cni, images).await,
            Self::Cri(socket) => {
                if cni.cni_conf_dir.is_some() {
                    let message =
                        "--cni-conf-dir needs --runtime oci: a CRI server makes the networks of its pods";
                    return Err(Failure::usage(message));
                }
                images.refuse_mirrors(OTHERS_PULL)?;
                let runtime = open_cri(socket, &data_dir.join(CRI)).await?;
                Ok(OpenRuntime::without_network(runtime))
            }
            Self::Auto => open_any(data_dir, cni, images).await,
        }
    }
}

/// The runtimes that have, or may have, something of a data directory. `cri` is where to look for a CRI server.
pub(crate) fn used_in(data_dir: &Path, cri: &RuntimeChoice) -> Vec<RuntimeChoice> {
    let is_root = rustix::process::geteuid().is_root();
    // The names of what containers leave on the machine follow from the directory: its files are not needed.
    let built_in = BuiltIn::ALL.into_iter().filter(|choice| match choice {
        BuiltIn::Oci => is_root && OciRuntime::may_have_containers(&choice.root(data_dir)),
        BuiltIn::Process => choice.root(data_dir).is_dir(),
    });
    let mut used: Vec<_> = built_in.map(RuntimeChoice::BuiltIn).collect();
    if CriRuntime::was_used(&data_dir.join(CRI)) {
        used.push(cri.clone());
    }
    used
}

/// Whether the machine has something of a data directory that does not exist. Creates nothing.
pub(crate) fn has_traces(data_dir: &Path) -> bool {
    OciRuntime::has_traces(&BuiltIn::Oci.root(data_dir), &network_of(data_dir))
}

/// Where the runtimes keep the containers that have shims, whether or not they exist.
pub(crate) fn roots_with_shims(data_dir: &Path) -> [PathBuf; 2] {
    BuiltIn::ALL.map(|choice| choice.root(data_dir))
}

/// The name by which a CRI server knows the containers of a data directory.
pub(crate) fn cri_owner(data_dir: &Path) -> Option<String> {
    CriRuntime::owner(&data_dir.join(CRI))
}

async fn open_cri(socket: &Path, root: &Path) -> Result<Arc<dyn Runtime>, Failure> {
    match connect(socket, root).await {
        Ok(runtime) => Ok(runtime),
        Err(error) => {
            let failure = Failure::environment(&error);
            Err(match error {
                CriOpenError::Connect(error) => failure.with_hint(error.hint()),
                CriOpenError::Owner(_) => failure,
            })
        }
    }
}

async fn connect(socket: &Path, root: &Path) -> Result<Arc<dyn Runtime>, CriOpenError> {
    let options = CriOptions {
        socket: socket.to_owned(),
        root: root.to_owned(),
    };
    Ok(Arc::new(CriRuntime::open(options).await?))
}

/// The first CRI server that answers. A directory whose pods are at one is never given to the built-in containers: they
/// would run a second time.
async fn open_any(data_dir: &Path, cni: &CniArgs, images: ImageSettings) -> Result<OpenRuntime, Failure> {
    let root = data_dir.join(CRI);
    for socket in USUAL_SOCKETS.map(Path::new) {
        match connect(socket, &root).await {
            Ok(runtime) => {
                images.refuse_mirrors(OTHERS_PULL)?;
                return Ok(OpenRuntime::without_network(runtime));
            }
            Err(CriOpenError::Connect(ConnectError::Missing { .. })) => {}
            Err(CriOpenError::Connect(error)) => output::note(&format!("not used: {error}")),
            Err(error @ CriOpenError::Owner(_)) => return Err(Failure::environment(error)),
        }
    }
    if CriRuntime::was_used(&root) {
        let message = format!(
            "none of {} answers, and pods of {} may be there",
            USUAL_SOCKETS.join(", "),
            data_dir.display()
        );
        let hint = "start the container runtime, or choose one with --runtime";
        return Err(Failure::environment(message).with_hint(hint));
    }
    BuiltIn::Oci.open(data_dir, cni, images).await
}

impl BuiltIn {
    const ALL: [Self; 2] = [Self::Oci, Self::Process];

    const fn name(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Process => "process",
        }
    }

    fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == text)
    }

    fn shim(self) -> ShimCommand {
        ShimCommand::this_program([SHIM, self.name()])
    }

    /// Where the runtime keeps its containers.
    pub(crate) fn root(self, data_dir: &Path) -> PathBuf {
        data_dir.join(self.name())
    }

    async fn open(
        self,
        data_dir: &Path,
        cni: &CniArgs,
        images: ImageSettings,
    ) -> Result<OpenRuntime, Failure> {
        let root = self.root(data_dir);
        let cni = self.plugins(cni)?;
        Ok(match self {
            Self::Process => {
                images.refuse_mirrors("host processes have no images")?;
                let opened = ProcessRuntime::open(&root, self.shim()).await;
                OpenRuntime::without_network(Arc::new(opened.map_err(Failure::environment)?))
            }
            Self::Oci => {
                let opened = OciRuntime::open(OciOptions {
                    root,
                    data_dir: data_dir.to_owned(),
                    shim: self.shim(),
                    program: this_program()?,
                    network: NetworkOptions {
                        cni,
                        ..network_of(data_dir)
                    },
                    images: open_images(data_dir).await?.with_mirrors(images.mirrors),
                    host_image: images.host_image,
                });
                let runtime = opened.await.map_err(Failure::environment)?;
                OpenRuntime {
                    network: runtime.pod_network(),
                    runtime: Arc::new(runtime),
                }
            }
        })
    }

    /// The plugins that make the networks of pods, if that was asked for.
    fn plugins(self, args: &CniArgs) -> Result<Option<CniOptions>, Failure> {
        let Some(conf_dir) = args.cni_conf_dir.clone() else {
            return Ok(None);
        };
        if self == Self::Process {
            let message = "--cni-conf-dir needs --runtime oci: host processes have the host's network";
            return Err(Failure::usage(message));
        }
        // It may be empty for a while: network add-ons write their configuration when they start.
        if !conf_dir.is_dir() {
            let message = format!("there is no directory {}", conf_dir.display());
            return Err(
                Failure::environment(message).with_hint("make it, or choose another with --cni-conf-dir")
            );
        }
        Ok(Some(CniOptions {
            conf_dir,
            bin_dirs: args.cni_bin_dir.clone(),
        }))
    }
}

/// The built-in containers for a kubelet, in a directory that the caller has claimed.
pub(crate) async fn open_for_kubelet(data_dir: &Path, args: &CriArgs) -> Result<Arc<dyn Runtime>, Failure> {
    let images = open_images(data_dir).await?;
    let cni = (!args.bridge).then(|| CniOptions {
        conf_dir: args.cni_conf_dir.clone(),
        bin_dirs: args.cni_bin_dir.clone(),
    });
    let opened = OciRuntime::open(OciOptions {
        root: BuiltIn::Oci.root(data_dir),
        data_dir: data_dir.to_owned(),
        shim: BuiltIn::Oci.shim(),
        program: this_program()?,
        network: NetworkOptions {
            cni,
            ..network_of(data_dir)
        },
        images: images.with_mirrors(args.registry_mirror.clone()),
        // The image of the machine's own files is for the local agent's pods.
        host_image: false,
    });
    Ok(Arc::new(opened.await.map_err(Failure::environment)?))
}

impl FromStr for RuntimeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix(SOCKET).map(PathBuf::from) {
            let absolute = path.is_absolute();
            let refused =
                || format!("the path of a socket is absolute: {SOCKET}/run/containerd/containerd.sock");
            return absolute.then_some(Self::Cri(path)).ok_or_else(refused);
        }
        if text == AUTO {
            return Ok(Self::Auto);
        }
        let named = BuiltIn::named(text).map(Self::BuiltIn);
        named.ok_or_else(|| {
            "there is `oci` (containers), `process` (plain host processes), `unix:///PATH` (a CRI server's socket) and \
             `auto` (a CRI server where there is one, else `oci`)"
                .to_owned()
        })
    }
}

/// The images of a data directory. Opening looks through files.
async fn open_images(data_dir: &Path) -> Result<ImageStore, Failure> {
    let data_dir = data_dir.to_owned();
    tokio::task::spawn_blocking(move || open_store(&data_dir))
        .await
        .expect("opening the images does not panic")
}

/// Where containers of the built-in image find this program.
fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::environment(format!("cannot find this program's own file: {error}")))
}

/// Two agents on one machine have different data directories; each has a bridge of its own.
fn network_of(data_dir: &Path) -> NetworkOptions {
    if data_dir::is_system(data_dir) {
        return NetworkOptions::default();
    }
    // FNV-1a, so that every build finds the same bridge again.
    let number = data_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    // The kernel takes names of 15 bytes.
    NetworkOptions {
        bridge: format!("plt-{:010x}", number & 0xff_ffff_ffff),
        ..NetworkOptions::default()
    }
}

/// Becomes a container's shim if that is what this process was started for.
///
/// Must come before anything that starts a thread: a shim has one, and is small.
pub(crate) fn shim(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if args.next()? != SHIM {
        return None;
    }
    Some(match BuiltIn::named(args.next()?.to_str()?)? {
        BuiltIn::Oci => pulselet_runtime_oci::shim_main(args),
        BuiltIn::Process => pulselet_runtime_process::shim_main(args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_refused_where_nobody_would_ask_them() {
        let settings = |mirror: &str| {
            ImageSettings::new(&NodeConfig {
                registry_mirrors: vec![mirror.to_owned()],
                ..NodeConfig::default()
            })
        };
        let images = settings("docker.io=https://mirror.example.com").expect("is a mirror");
        assert_eq!(images.mirrors.len(), 1);
        assert!(images.refuse_mirrors("of no use").is_err());
        assert!(ImageSettings::default().refuse_mirrors("none").is_ok());
        assert!(settings("mirror.example.com").is_err());
    }

    #[test]
    fn a_choice_is_known_by_its_name() {
        for choice in BuiltIn::ALL {
            assert_eq!(choice.name().parse(), Ok(RuntimeChoice::BuiltIn(choice)));
        }
        assert_eq!("auto".parse(), Ok(RuntimeChoice::Auto));
        assert_eq!(
            "unix:///run/x.sock".parse(),
            Ok(RuntimeChoice::Cri("/run/x.sock".into()))
        );
        for wrong in ["docker", "unix://x.sock", "unix://", "/run/x.sock", ""] {
            assert!(RuntimeChoice::from_str(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn agents_of_different_directories_have_different_bridges() {
        let (one, other) = (network_of(Path::new("/a")), network_of(Path::new("/b")));
        assert_ne!(one.bridge, other.bridge);
        assert!(one.bridge.len() <= 15);
    }

    #[test]
    fn plugins_are_for_containers_and_need_their_directory() {
        let plugins = |choice: BuiltIn, conf_dir: Option<&str>| {
            let args = CniArgs {
                cni_conf_dir: conf_dir.map(PathBuf::from),
                cni_bin_dir: vec!["/bin".into()],
            };
            choice.plugins(&args).map(|options| options.is_some())
        };
        assert!(!plugins(BuiltIn::Process, None).unwrap());
        assert!(plugins(BuiltIn::Oci, Some("/etc")).unwrap());
        assert!(plugins(BuiltIn::Oci, Some("/no/such/directory")).is_err());
        assert!(plugins(BuiltIn::Process, Some("/etc")).is_err());
    }

    #[test]
    fn other_commands_are_no_shims() {
        let args = ["run", "shim"].map(OsString::from);
        assert!(shim(args.into_iter()).is_none());
    }
}
