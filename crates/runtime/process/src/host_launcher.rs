//! The shim's program for host processes: how a container's processes are started as plain children.

use std::{
    ffi::OsString,
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
};

use pulselet_runtime::ContainerUser;
use pulselet_shim::{ChildStreams, LaunchError, Launcher, detach, is_starter, reason, record, serve_starts};
use pulselet_shim_client::{CONTAINER_FILE, ContainerRecord};
use pulselet_sys::{Pid, ProcessCredentials, Spawn};

use crate::cgroup::Cgroup;

/// Set for every process of a container, to its id.
pub const CONTAINER_ID_VARIABLE: &str = "PULSELET_CONTAINER_ID";

/// Where programs are looked for if the agent itself has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The shim's program: `<container directory>` is the only argument, which a starter gets with every request. Its stdout is for the agent that starts it.
pub fn shim_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(dir), None) = (args.next().map(PathBuf::from), args.next()) else {
        return pulselet_shim::refuse("the shim wants one argument, the container's directory");
    };
    if is_starter() {
        return serve_starts(become_shim);
    }
    match detach() {
        ControlFlow::Continue(()) => become_shim(dir),
        ControlFlow::Break(code) => code,
    }
}

fn become_shim(dir: PathBuf) -> ExitCode {
    let record = match record::read::<ContainerRecord>(&dir, CONTAINER_FILE) {
        Ok(Some(record)) => record,
        Ok(None) => return pulselet_shim::refuse("there is no such container"),
        Err(error) => return pulselet_shim::refuse(&error.to_string()),
    };
    pulselet_shim::run(
        record.shim_config(&dir),
        HostLauncher {
            dir,
            record,
            cgroup: None,
        },
    )
}

struct HostLauncher {
    dir: PathBuf,
    record: ContainerRecord,
    cgroup: Option<Cgroup>,
}

impl Launcher for HostLauncher {
    fn start_init(&mut self, streams: ChildStreams) -> Result<Pid, LaunchError> {
        self.cgroup = Cgroup::create(&self.dir, self.record.id.as_str());
        let config = &self.record.config;
        let command: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
        self.spawn(&command, streams)
    }

    /// What nothing is said about is as it is for this process.
    fn user(&self) -> Option<ContainerUser> {
        if let Some(ProcessCredentials { uid, gid, groups }) = self.credentials() {
            return Some(ContainerUser {
                uid,
                gid,
                supplemental_groups: groups,
            });
        }
        let groups = rustix::process::getgroups().ok()?;
        Some(ContainerUser {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            supplemental_groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        })
    }

    fn start_exec(&mut self, command: &[String], streams: ChildStreams) -> Result<Pid, LaunchError> {
        self.spawn(command, streams)
    }

    fn kill_all(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }

    fn clean_up(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }
}

impl HostLauncher {
    fn spawn(&self, command: &[String], streams: ChildStreams) -> Result<Pid, LaunchError> {
        let Some((program, args)) = command.split_first() else {
            return Err(LaunchError::CannotRun("no command was given".into()));
        };
        let config = &self.record.config;
        let working_dir = PathBuf::from(config.working_dir.as_deref().unwrap_or("/"));
        check_directory(&working_dir)?;
        let mut env = self.environment();
        let term = streams.term_variable(env.iter().map(|(name, _)| name));
        env.extend(term.map(|(name, kind)| (name.into(), kind.into())));
        let spawn = Spawn {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            env,
            working_dir,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            controlling_terminal: streams.terminal.is_some(),
            credentials: self.credentials(),
            no_new_privs: config.security.no_new_privs,
            cgroup: self.cgroup.as_ref().map(Cgroup::entrance).transpose()?,
        };
        let missing = !program.contains('/') && !is_in_path(program, &spawn.env);
        spawn
            .spawn()
            .map_err(|error| launch_error(program, missing, error))
    }

    /// A little of the agent's own, then the pod's; the last of equal names wins.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let record = &self.record;
        let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let own = std::env::current_exe().ok();
        let mut env = vec![
            ("PATH".into(), search_path(path, own.as_deref())),
            ("HOSTNAME".into(), OsString::from(&record.config.pod.name)),
        ];
        env.extend(std::env::var_os("HOME").map(|home| ("HOME".into(), home)));
        env.extend(
            volume_variables(record)
                .into_iter()
                .map(|(name, path)| (name.into(), path.into_os_string())),
        );
        env.extend(
            record
                .config
                .env
                .iter()
                .map(|var| ((&var.name).into(), (&var.value).into())),
        );
        env.push((CONTAINER_ID_VARIABLE.into(), record.id.as_str().into()));
        env
    }

    /// Returns `None` if processes run as the agent does. A user without a group gets the group 0, as in containers.
    fn credentials(&self) -> Option<ProcessCredentials> {
        let security = &self.record.config.security;
        if security.run_as_user.is_none()
            && security.run_as_group.is_none()
            && security.supplemental_groups.is_empty()
            && !security.strict_groups
        {
            return None;
        }
        let uid = security
            .run_as_user
            .unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let gid = security.run_as_group.unwrap_or(0);
        Some(ProcessCredentials {
            uid,
            gid,
            groups: security.supplemental_groups.clone(),
        })
    }
}

/// The variables by which a container finds its volumes.
fn volume_variables(record: &ContainerRecord) -> Vec<(String, PathBuf)> {
    let mut variables: Vec<(String, PathBuf)> = Vec::new();
    for mount in record
        .config
        .mounts
        .iter()
        .filter(|mount| !mount.volume.is_empty())
    {
        let capital = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        };
        let base: String = "PULSELET_VOLUME_"
            .chars()
            .chain(mount.volume.chars().map(capital))
            .collect();
        let source = mount.source();
        let mut name = base.clone();
        let mut number = 1;
        while let Some((_, path)) = variables.iter().find(|(taken, _)| *taken == name) {
            if *path == source {
                break;
            }
            number += 1;
            name = format!("{base}_{number}");
        }
        variables.push((name, source));
    }
    variables
}

/// The agent's path, and behind it the directory of this program, which manifests name as they do in containers.
fn search_path(path: OsString, program: Option<&Path>) -> OsString {
    let Some(own) = program.and_then(Path::parent) else {
        return path;
    };
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    if !directories.iter().any(|directory| directory == own) {
        directories.push(own.to_owned());
    }
    // A directory with a colon in its name cannot be part of a path.
    std::env::join_paths(directories).unwrap_or(path)
}

/// The search itself says "permission denied" also when only some directory of the path cannot be read.
fn is_in_path(program: &str, env: &[(OsString, OsString)]) -> bool {
    let path = env
        .iter()
        .rev()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    path.is_some_and(|path| std::env::split_paths(path).any(|dir| dir.join(program).exists()))
}

/// Checks the directory before the spawn, whose error could not tell a missing directory from a missing program.
fn check_directory(dir: &Path) -> Result<(), LaunchError> {
    let problem = match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is not a directory".to_owned(),
        Err(error) => reason(&error),
    };
    Err(LaunchError::CannotRun(format!(
        "working directory {:?}: {problem}",
        dir.display().to_string()
    )))
}

/// Decides whose fault it is. The texts are those users know from other runtimes.
fn launch_error(program: &str, missing: bool, error: io::Error) -> LaunchError {
    use io::ErrorKind as Kind;
    if missing {
        return LaunchError::CannotRun(format!("exec: {program:?}: executable file not found in $PATH"));
    }
    // Kinds that have no stable name: ENOEXEC and ELOOP.
    let own_number = matches!(error.raw_os_error(), Some(8 | 40));
    match error.kind() {
        Kind::NotFound
        | Kind::PermissionDenied
        | Kind::NotADirectory
        | Kind::IsADirectory
        | Kind::InvalidInput
        | Kind::InvalidFilename
        | Kind::ArgumentListTooLong
        | Kind::ExecutableFileBusy => {
            LaunchError::CannotRun(format!("exec: {program:?}: {}", reason(&error)))
        }
        _ if own_number => LaunchError::CannotRun(format!("exec: {program:?}: {}", reason(&error))),
        _ => LaunchError::Spawn(error),
    }
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::Mount;

    use super::*;

    fn record(mounts: &[(&str, &str)]) -> ContainerRecord {
        let mounts = mounts.iter().map(|(volume, path)| Mount {
            volume: (*volume).into(),
            container_path: "/data".into(),
            host_path: (*path).into(),
            image: None,
            sub_path: None,
            read_only: false,
            recursive_read_only: false,
            propagation: pulselet_runtime::Propagation::Private,
        });
        let mounts = mounts.collect();
        ContainerRecord {
            id: pulselet_runtime::ContainerId::new("c1"),
            sandbox: pulselet_runtime::SandboxId::new("s1"),
            boot_id: String::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            stop_signal: pulselet_runtime::Signal::TERM,
            config: pulselet_runtime::ContainerConfig {
                mounts,
                ..Default::default()
            },
            log_limits: None,
        }
    }

    #[test]
    fn volumes_become_variables() {
        let record = record(&[
            ("my-data.v1", "/a"),
            ("other", "/b"),
            ("my-data.v1", "/a/sub"),
            ("", "/etc/hosts"),
        ]);
        let names: Vec<_> = volume_variables(&record)
            .into_iter()
            .map(|(name, path)| format!("{name}={}", path.display()))
            .collect();
        assert_eq!(
            names,
            [
                "PULSELET_VOLUME_MY_DATA_V1=/a",
                "PULSELET_VOLUME_OTHER=/b",
                "PULSELET_VOLUME_MY_DATA_V1_2=/a/sub"
            ]
        );
    }

    #[test]
    fn the_agents_own_program_is_found_last() {
        let path = |own: &str| search_path("/bin:/usr/bin".into(), Some(Path::new(own)));
        assert_eq!(path("/opt/pulselet"), "/bin:/usr/bin:/opt");
        assert_eq!(path("/usr/bin/pulselet"), "/bin:/usr/bin");
        assert_eq!(path("/a:b/pulselet"), "/bin:/usr/bin");
        assert_eq!(search_path("/bin".into(), None), "/bin");
    }

    #[test]
    fn the_fault_is_given_to_whom_it_belongs() {
        let message = |program: &str, number| match launch_error(
            program,
            program == "nope",
            io::Error::from_raw_os_error(number),
        ) {
            LaunchError::CannotRun(message) => message,
            LaunchError::Spawn(_) => "the machine's".to_owned(),
        };
        assert_eq!(
            message("nope", 13),
            "exec: \"nope\": executable file not found in $PATH"
        );
        assert_eq!(message("/nope", 2), "exec: \"/nope\": no such file or directory");
        assert_eq!(
            message("/etc/passwd", 13),
            "exec: \"/etc/passwd\": permission denied"
        );
        assert_eq!(message("./x", 8), "exec: \"./x\": exec format error");
        assert_eq!(message("sh", 11), "the machine's");
        assert_eq!(message("sh", 12), "the machine's");
    }
}
