//! The one place where a container runtime is chosen and opened, and where the monitors of its containers begin.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use pulselet_image::ImageStore;
use pulselet_runtime::Runtime;
use pulselet_runtime_oci::{CniOptions, NetworkOptions, OciOptions, OciRuntime};
use pulselet_runtime_process::{MonitorCommand, ProcessRuntime};

use crate::cli::CniArgs;
use crate::commands::open_store;
use crate::data_dir;
use crate::exit::Failure;

/// The hidden subcommand that a container's monitor runs as; the runtime's name follows it.
const MONITOR: &str = "monitor";

/// `--runtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeChoice {
    Oci,
    Process,
}

impl RuntimeChoice {
    const fn name(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Process => "process",
        }
    }

    fn monitor(self) -> MonitorCommand {
        MonitorCommand::this_program([MONITOR, self.name()])
    }

    /// Where the runtime keeps its containers.
    pub(crate) fn root(self, data_dir: &Path) -> PathBuf {
        data_dir.join(self.name())
    }

    /// Opens the runtime below a data directory that the caller has claimed.
    pub(crate) async fn open(self, data_dir: &Path, cni: &CniArgs) -> Result<Arc<dyn Runtime>, Failure> {
        let root = self.root(data_dir);
        let cni = self.plugins(cni)?;
        Ok(match self {
            Self::Process => Arc::new(
                ProcessRuntime::open(&root, self.monitor())
                    .await
                    .map_err(Failure::environment)?,
            ),
            Self::Oci => Arc::new(
                OciRuntime::open(OciOptions {
                    root,
                    data_dir: data_dir.to_owned(),
                    monitor: self.monitor(),
                    program: this_program()?,
                    network: NetworkOptions {
                        cni,
                        ..network_of(data_dir)
                    },
                    images: open_images(data_dir).await?,
                })
                .await
                .map_err(Failure::environment)?,
            ),
        })
    }
}

impl RuntimeChoice {
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
            return Err(Failure::environment(message).with_hint("make it, or choose another with --cni-conf-dir"));
        }
        Ok(Some(CniOptions {
            conf_dir,
            bin_dirs: args.cni_bin_dir.clone(),
        }))
    }
}

impl FromStr for RuntimeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Oci, Self::Process]
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| "there is `oci` (containers) and `process` (plain host processes)".to_owned())
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
    if data_dir == data_dir::system() {
        return NetworkOptions::default();
    }
    let path = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    // FNV-1a, so that every build finds the same bridge again.
    let number = path
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

/// Becomes a container's monitor if that is what this process was started for.
///
/// Must come before anything that starts a thread: a monitor has one, and is small.
pub(crate) fn monitor(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if args.next()? != MONITOR {
        return None;
    }
    let choice: RuntimeChoice = args.next()?.to_str()?.parse().ok()?;
    Some(match choice {
        RuntimeChoice::Oci => pulselet_runtime_oci::monitor_main(args),
        RuntimeChoice::Process => pulselet_runtime_process::monitor_main(args),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_known_by_its_name() {
        for choice in [RuntimeChoice::Oci, RuntimeChoice::Process] {
            assert_eq!(choice.name().parse(), Ok(choice));
        }
        assert!(RuntimeChoice::from_str("docker").unwrap_err().contains("process"));
    }

    #[test]
    fn agents_of_different_directories_have_different_bridges() {
        let (one, other) = (network_of(Path::new("/a")), network_of(Path::new("/b")));
        assert_ne!(one.bridge, other.bridge);
        assert!(one.bridge.len() <= 15);
    }

    #[test]
    fn plugins_are_for_containers_and_need_their_directory() {
        let plugins = |choice: RuntimeChoice, conf_dir: Option<&str>| {
            let args = CniArgs {
                cni_conf_dir: conf_dir.map(PathBuf::from),
                cni_bin_dir: vec!["/bin".into()],
            };
            choice.plugins(&args).map(|options| options.is_some())
        };
        assert!(!plugins(RuntimeChoice::Process, None).unwrap());
        assert!(plugins(RuntimeChoice::Oci, Some("/etc")).unwrap());
        assert!(plugins(RuntimeChoice::Oci, Some("/no/such/directory")).is_err());
        assert!(plugins(RuntimeChoice::Process, Some("/etc")).is_err());
    }

    #[test]
    fn other_commands_are_no_monitors() {
        let args = ["run", "monitor"].map(OsString::from);
        assert!(monitor(args.into_iter()).is_none());
    }
}
