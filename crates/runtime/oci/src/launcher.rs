//! How a container is launched; runs in its shim.

use std::{
    ffi::{CStr, OsString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use pulselet_shim::{
    ChildStreams, ExecCommand, Handshake, LOG_FILE_SIZE, LOG_FILES, LaunchError, Launcher, ShimConfig, record,
};
use pulselet_shim_client::{CONTAINER_FILE, ContainerRecord};
use pulselet_sys::Pid;
use rustix::{
    process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::set_name,
};

use crate::{
    birth::{self, Born},
    cgroup::{Cgroup, Hierarchies},
    launch::{Launch, Processes},
    pod_process,
    user::User,
};

/// What the name of a shim is in lists of processes.
const PROCESS_NAME: &CStr = c"pulselet-mon";

/// How long what shares its process namespace with others may take to be gone after it was killed.
const KILL_PATIENCE: Duration = Duration::from_millis(100);

/// The shim's program. Its only argument is the container's directory; with a sandbox's directory and a cgroup it is
/// the first process of a pod instead. Its stdout is for the agent that starts it.
pub fn shim_main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<PathBuf> = args.map(PathBuf::from).collect();
    // It was started by way of a descriptor, whose number would be its name.
    let _ = set_name(PROCESS_NAME);
    match args.as_slice() {
        [dir] => match prepare(dir.clone()) {
            Ok((config, launcher)) => pulselet_shim::run(config, launcher),
            Err(detail) => refuse(&detail),
        },
        [sandbox_dir, cgroup] => pod_process::main(sandbox_dir, cgroup),
        _ => refuse("the shim wants the container's directory"),
    }
}

fn refuse(detail: &str) -> ExitCode {
    pulselet_shim::report(&Handshake::Failed {
        detail: detail.to_owned(),
    });
    ExitCode::FAILURE
}

fn prepare(dir: PathBuf) -> Result<(ShimConfig, ContainerLauncher), String> {
    let missing = || "there is no such container".to_owned();
    let record: ContainerRecord = record::read(&dir, CONTAINER_FILE)
        .map_err(|error| error.to_string())?
        .ok_or_else(missing)?;
    let launch = Launch::read(&dir)
        .map_err(|error| error.to_string())?
        .ok_or_else(missing)?;
    let hierarchies = Hierarchies::find().map_err(|error| error.to_string())?;
    let config = ShimConfig {
        dir: dir.clone(),
        log_path: record.config.log_path,
        log_file_size: LOG_FILE_SIZE,
        log_files: LOG_FILES,
        stop_signal: record.stop_signal,
        stdin: record.config.stdin,
        stdin_once: record.config.stdin_once,
        tty: record.config.tty,
    };
    let launcher = ContainerLauncher {
        cgroup: hierarchies.cgroup(&launch.cgroup.path),
        dir,
        launch,
        main: None,
    };
    Ok((config, launcher))
}

struct ContainerLauncher {
    dir: PathBuf,
    launch: Launch,
    cgroup: Cgroup,
    main: Option<Main>,
}

struct Main {
    /// Names the process also when it is gone and its number is another's.
    handle: OwnedFd,
    user: User,
}

impl Launcher for ContainerLauncher {
    fn launch(&mut self, streams: ChildStreams) -> Result<Pid, LaunchError> {
        let limited = self
            .cgroup
            .create()
            .and_then(|()| self.cgroup.limit(&self.launch.cgroup.resources));
        limited.map_err(|error| LaunchError::Spawn(io::Error::other(error)))?;
        let Born { pid, user } = birth::bear(&self.launch, &self.dir, &self.cgroup, streams)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        self.main = Some(Main { handle, user });
        Ok(pid)
    }

    fn launch_exec(&mut self, command: &ExecCommand, streams: ChildStreams) -> Result<Pid, LaunchError> {
        let Some(main) = &self.main else {
            return Err(LaunchError::Spawn(io::Error::other("the container does not run")));
        };
        birth::join(
            &self.launch,
            &self.cgroup,
            main.handle.as_fd(),
            &main.user,
            command,
            streams,
        )
    }

    /// The end of its first process is the end of a process namespace. Where the container has none of its own, the
    /// cgroup knows who belongs to it.
    fn kill_all(&mut self) {
        if let Some(main) = &self.main {
            let _ = pidfd_send_signal(&main.handle, Signal::KILL);
        }
        match self.launch.namespaces.processes {
            Processes::Own => {}
            Processes::Pod(_) | Processes::Host => drop(self.cgroup.kill_until_empty(KILL_PATIENCE)),
        }
    }

    fn reaps_exec(&self) -> bool {
        true
    }

    fn oom_killed(&mut self) -> bool {
        self.cgroup.oom_killed()
    }

    fn clean_up(&mut self) {
        self.cgroup.remove();
    }
}
