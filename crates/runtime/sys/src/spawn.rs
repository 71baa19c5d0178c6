//! Running a program as the child of a shim.
//!
//! The child leads a session and a process group of its own, is killed when its parent dies, starts with default signal
//! handling and nothing of the parent but the three streams. What cannot be done is an error of [`Spawn::spawn`], and
//! then there is no child.

use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
};

use rustix::process::{
    Pid, Signal, getpid, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid,
};

use crate::signal::unblock_all;

/// A program to run.
#[derive(Debug)]
pub struct Spawn {
    /// With no slash, it is looked up in the PATH of `env`.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub working_dir: PathBuf,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Makes stdin, which must be a terminal, the controlling terminal of the new session.
    pub controlling_terminal: bool,
    pub credentials: Option<ProcessCredentials>,
    pub no_new_privs: bool,
    /// An open `cgroup.procs` that the child joins before it runs the program.
    pub cgroup: Option<OwnedFd>,
}

/// Who the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessCredentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Spawn {
    /// Runs the program and returns its process id. The caller is its parent and has to wait for it.
    pub fn spawn(self) -> io::Result<Pid> {
        let Self {
            credentials,
            no_new_privs,
            cgroup,
            controlling_terminal,
            ..
        } = self;
        let parent = getpid();
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(
                self.env
                    .iter()
                    .map(|(name, value)| (name.as_os_str(), value.as_os_str())),
            )
            .current_dir(&self.working_dir)
            .stdin(Stdio::from(self.stdin))
            .stdout(Stdio::from(self.stdout))
            .stderr(Stdio::from(self.stderr));
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                // The parent died before the line above; nobody would ever wait for this process.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            unblock_all()?;
            setsid()?;
            if let Some(procs) = &cgroup {
                rustix::io::write(procs, b"0")?;
            }
            if controlling_terminal {
                ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            if let Some(credentials) = &credentials {
                become_user(credentials)?;
                // Changing the user made the kernel forget it.
                set_parent_process_death_signal(Some(Signal::KILL))?;
            }
            if no_new_privs {
                rustix::thread::set_no_new_privs(true)?;
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec and makes system calls only: it allocates nothing (the error it
        // may return holds just a number) and takes no lock. What it refers to was moved into it before the fork.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn()?;
        Ok(Pid::from_child(&child))
    }
}

/// Groups first: afterwards there is no right to change them. For a process with one thread.
pub fn become_user(credentials: &ProcessCredentials) -> io::Result<()> {
    let check = |result: libc::c_int| {
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: pointer and length belong to one slice that lives through the call.
    check(unsafe { libc::setgroups(credentials.groups.len(), credentials.groups.as_ptr()) })?;
    // SAFETY: takes plain numbers; it runs in a child with one thread.
    check(unsafe { libc::setresgid(credentials.gid, credentials.gid, credentials.gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::setresuid(credentials.uid, credentials.uid, credentials.uid) })
}

/// Lets the files that this process makes from now on belong to that user and group. It stays who it is otherwise, but
/// a user other than root takes the rights on files from its effective capabilities. For a process with one thread.
pub fn own_files_as(uid: u32, gid: u32) -> io::Result<()> {
    let set_gid = |gid: u32| {
        // SAFETY: takes a plain number; it runs in a process with one thread.
        unsafe { libc::setfsgid(gid) }.cast_unsigned()
    };
    let set_uid = |uid: u32| {
        // SAFETY: as above.
        unsafe { libc::setfsuid(uid) }.cast_unsigned()
    };
    set_gid(gid);
    set_uid(uid);
    // Both return the value before, and a number that is none changes nothing.
    if (set_uid(u32::MAX), set_gid(u32::MAX)) == (uid, gid) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read};

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// Runs a shell script and returns its exit code and output.
    fn run(script: &str, change: impl FnOnce(&mut Spawn)) -> io::Result<(Option<i32>, String)> {
        let null = || {
            File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .map(OwnedFd::from)
        };
        let (mut reader, writer) = io::pipe()?;
        let mut spawn = Spawn {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/bin:/usr/bin".into())],
            working_dir: "/".into(),
            stdin: null()?,
            stdout: writer.into(),
            stderr: null()?,
            controlling_terminal: false,
            credentials: None,
            no_new_privs: false,
            cgroup: None,
        };
        change(&mut spawn);
        let pid = spawn.spawn()?;
        let mut output = String::new();
        reader.read_to_string(&mut output)?;
        let (_, status) = waitpid(Some(pid), WaitOptions::empty())?.expect("a blocking wait returns a child");
        Ok((status.exit_status(), output))
    }

    #[test]
    fn the_child_leads_its_own_session_and_has_only_the_given_environment() {
        let (code, output) = run(
            "cut -d' ' -f1,6 /proc/self/stat; echo $$; env | grep -v '^_=' | sort",
            |spawn| {
                spawn.env.push(("A".into(), "b c".into()));
            },
        )
        .expect("sh runs");
        let lines: Vec<&str> = output.lines().collect();
        let session = lines[0].split(' ').nth(1).expect("two fields");
        assert_eq!(session, lines[1], "the shell is the session's leader");
        assert_eq!(&lines[2..], ["A=b c", "PATH=/bin:/usr/bin", "PWD=/"]);
        assert_eq!(code, Some(0));
    }

    #[test]
    fn blocked_signals_are_not_inherited() {
        crate::block_termination().expect("blocks");
        let (_, output) = run("grep SigBlk /proc/self/status", |_| {}).expect("sh runs");
        assert_eq!(output, "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn a_missing_program_is_an_error_without_a_child() {
        let error = run("", |spawn| spawn.program = "no-such-program".into()).expect_err("it is not there");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_user_and_groups_are_changed() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            return;
        }
        let (_, output) = run(
            "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status",
            |spawn| {
                spawn.credentials = Some(ProcessCredentials {
                    uid: 1234,
                    gid: 1235,
                    groups: vec![1236],
                });
                spawn.no_new_privs = true;
            },
        )
        .expect("sh runs");
        assert_eq!(output, "1234\n1235\n1235 1236\nNoNewPrivs:\t1\n");
    }
}
