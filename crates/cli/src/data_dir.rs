//! Where an agent keeps its state: where its flag says, by the one name of that directory, or at the usual place.

use std::path::{Path, PathBuf};

use pulselet_agent::Layout;
use pulselet_agent::control::ControlClient;

use crate::cli::DataDirArgs;
use crate::exit::Failure;
use crate::paths;

/// The directory of the machine's own agent.
const SYSTEM: &str = "/var/lib/pulselet";

/// Whether a directory, as [`DataDirArgs::resolve`] has it, is that of the machine's own agent.
pub(crate) fn is_system(data_dir: &Path) -> bool {
    paths::real(Path::new(SYSTEM)).is_ok_and(|system| system == data_dir)
}

/// What to try where no agent answers at a socket of one's own, but the machine may have one.
pub(crate) fn hint_of_system_agent(socket: &Path) -> Option<&'static str> {
    let is_another = !rustix::process::geteuid().is_root() && !socket.starts_with(SYSTEM);
    (is_another && Path::new(SYSTEM).exists())
        .then_some("the machine's own agent is root's and uses /var/lib/pulselet: ask it with sudo")
}

impl DataDirArgs {
    /// The directory by its absolute path, without links.
    pub(crate) fn resolve(&self) -> Result<PathBuf, Failure> {
        let named = match &self.data_dir {
            Some(path) => path.clone(),
            None if rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM),
            None => of_user()?,
        };
        paths::real(&named).map_err(|error| {
            let path = named.display();
            let message =
                format_args!("cannot tell where {path} is, seen from the working directory: {error}");
            Failure::environment(message).with_hint("name an absolute path with --data-dir")
        })
    }

    /// Talks to the agent that has the directory.
    pub(crate) fn client(&self) -> Result<ControlClient, Failure> {
        Ok(ControlClient::new(Layout::new(self.resolve()?).socket()))
    }
}

fn of_user() -> Result<PathBuf, Failure> {
    let variable = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("pulselet"))
        .ok_or_else(|| {
            Failure::environment("neither XDG_STATE_HOME nor HOME says where state belongs")
                .with_hint("name a directory with --data-dir")
        })
}
