//! `AppArmor` profiles of containers: the default one, which is loaded when the runtime opens, and those that an
//! administrator has loaded.
//!
//! A process on its way into a container says under which profile its program is to run while it still sees the host's
//! /proc: nothing of a container can stand in for that. The kernel keeps it over forks and changes the profile when the
//! program is run, and not before: what comes until then a profile would not allow.
//!
//! Where the kernel has no `AppArmor`, or the program is missing that compiles profiles, there are none, and the node
//! refuses pods that ask for one.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use pulselet_runtime::{AppArmor, Error, Result, SecurityContext};

/// The profile of containers whose pod asks for no other.
pub(crate) const DEFAULT_PROFILE: &str = "pulselet-default";

/// Says `Y` if the kernel has `AppArmor` and uses it.
const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
/// The profiles that are loaded, a line each: name and mode.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// Where the program is that compiles and loads profiles.
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];
/// The version of the language in which the default profile is written. Without it newer parsers take an older one.
const LANGUAGE: &str = "abi/3.0";
const LANGUAGES: &str = "/etc/apparmor.d";
/// This process's own profile, and the one of the next program it runs. Kernels before 5.8 have only the older name.
const CURRENT: &str = "/proc/self/attr/current";
const NEXT: [&str; 2] = ["/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"];

#[derive(Debug, thiserror::Error)]
pub(crate) enum AppArmorError {
    #[error("the kernel does not use it")]
    NotInKernel,
    #[error("there is no apparmor_parser; install the package apparmor")]
    NoParser,
    #[error("cannot run apparmor_parser: {0}")]
    RunParser(io::Error),
    #[error("apparmor_parser refuses the default profile: {0}")]
    Refused(String),
}

/// Compiles the default profile and loads it; one of the same name is replaced.
pub(crate) fn load_default() -> std::result::Result<(), AppArmorError> {
    let enabled = fs::read_to_string(ENABLED).is_ok_and(|text| text.starts_with('Y'));
    if !enabled || !Path::new(LOADED).exists() {
        return Err(AppArmorError::NotInKernel);
    }
    let parser = PARSERS.iter().find(|path| Path::new(path).exists());
    let parser = parser.ok_or(AppArmorError::NoParser)?;
    let mut child = Command::new(parser)
        .args(["--replace", "--skip-cache"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(AppArmorError::RunParser)?;
    let language = Path::new(LANGUAGES).join(LANGUAGE).exists();
    let text = default_profile(&own_profile(), language);
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(text.as_bytes())
            .map_err(AppArmorError::RunParser)?;
    }
    let output = child.wait_with_output().map_err(AppArmorError::RunParser)?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(AppArmorError::Refused(said))
    }
}

/// The profile under which the container's programs run; `None` if under none. `available` says whether the default one
/// is loaded.
pub(crate) fn profile(security: &SecurityContext, available: bool) -> Result<Option<String>> {
    let invalid = |detail: String| Error::Invalid {
        field: "appArmorProfile",
        detail,
    };
    match &security.app_armor {
        Some(AppArmor::Unconfined) => Ok(None),
        Some(AppArmor::RuntimeDefault | AppArmor::Localhost(_)) if !available => {
            Err(invalid("AppArmor is not used on this machine".to_owned()))
        }
        Some(AppArmor::Localhost(name)) => {
            if is_loaded(name, &fs::read_to_string(LOADED).unwrap_or_default()) {
                Ok(Some(name.clone()))
            } else {
                Err(invalid(format!(
                    "the profile {name:?} is not loaded; load it with apparmor_parser"
                )))
            }
        }
        Some(AppArmor::RuntimeDefault) | None if security.privileged || !available => Ok(None),
        Some(AppArmor::RuntimeDefault) | None => Ok(Some(DEFAULT_PROFILE.to_owned())),
    }
}

/// Says under which profile this process's next program runs. The caller sees the host's /proc.
pub(crate) fn set_next_profile(name: &str) -> io::Result<()> {
    let [newer, older] = NEXT;
    let path = if Path::new(newer).exists() { newer } else { older };
    fs::File::options()
        .write(true)
        .open(path)?
        .write_all(format!("exec {name}").as_bytes())
}

fn is_loaded(name: &str, loaded: &str) -> bool {
    let mut lines = loaded.lines().filter_map(|line| line.rsplit_once(" ("));
    lines.any(|(loaded, _)| loaded == name)
}

/// The profile of this process, whose signals containers must get.
fn own_profile() -> String {
    let text = fs::read_to_string(CURRENT).unwrap_or_default();
    let name = text.trim().split(" (").next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_plain) {
        name.to_owned()
    } else {
        "unconfined".to_owned()
    }
}

/// What containers of other runtimes may do by default, in rules of our own. Files are the container's own already, and
/// the dangerous ones are hidden or read-only; this holds where a capability or a mistake would undo that.
fn default_profile(agent: &str, language: bool) -> String {
    let language = if language {
        format!("abi <{LANGUAGE}>,\n")
    } else {
        String::new()
    };
    format!(
        "{language}profile {DEFAULT_PROFILE} flags=(attach_disconnected,mediate_deleted) {{
  capability,
  file,
  network,
  umount,
  deny mount,

  # Signals and traces among the container's own processes; signals of the agent and its shims.
  signal (send,receive) peer={DEFAULT_PROFILE},
  signal (receive) peer=unconfined,
  signal (receive) peer={agent},
  ptrace (read,readby,trace,tracedby) peer={DEFAULT_PROFILE},

  # Below /proc, files of processes can be written, and the limits of shared memory.
  deny /proc/* w,
  deny /proc/[^1-9s]*/** w,
  deny /proc/s[^y]*/** w,
  deny /proc/sy[^s]*/** w,
  deny /proc/sys?*/** w,
  deny /proc/sys/[^k]** w,
  deny /proc/sys/k[^e]** w,
  deny /proc/sys/ke[^r]** w,
  deny /proc/sys/kernel/[^s]** w,
  deny /proc/sys/kernel/s[^h]** w,
  deny /proc/sys/kernel/sh[^m]** w,
  deny /proc/{{kcore,sysrq-trigger}} rwklx,

  # Below /sys, cgroups.
  deny /sys/[^f]** wklx,
  deny /sys/f[^s]** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/fs/c[^g]** wklx,
  deny /sys/fs/cg[^r]** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(app_armor: Option<AppArmor>, privileged: bool) -> SecurityContext {
        SecurityContext {
            app_armor,
            privileged,
            ..SecurityContext::default()
        }
    }

    #[test]
    fn who_asks_for_nothing_gets_the_default_where_there_is_one() {
        let default = || Some(DEFAULT_PROFILE.to_owned());
        let said = Some(AppArmor::RuntimeDefault);
        for (asked, available, expected) in [
            (asked(None, false), true, default()),
            (asked(None, false), false, None),
            (asked(None, true), true, None),
            (asked(said.clone(), false), true, default()),
            (asked(said, true), true, None),
            (asked(Some(AppArmor::Unconfined), false), true, None),
            (asked(Some(AppArmor::Unconfined), false), false, None),
        ] {
            assert_eq!(
                profile(&asked, available).expect("it can be had"),
                expected,
                "{asked:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_its_field() {
        for wanted in [AppArmor::RuntimeDefault, AppArmor::Localhost("mine".into())] {
            let error = profile(&asked(Some(wanted), false), false).expect_err("it is refused");
            assert!(error.to_string().contains("appArmorProfile"), "{error}");
        }
        let missing = asked(Some(AppArmor::Localhost("no-such-profile".into())), false);
        let error = profile(&missing, true).expect_err("it is not loaded").to_string();
        assert!(error.contains("load it with apparmor_parser"), "{error}");
    }

    #[test]
    fn loaded_profiles_are_told_by_their_whole_names() {
        let loaded = "mine (enforce)\nother one (complain)\n/usr/bin/man (enforce)\n";
        assert!(is_loaded("mine", loaded) && is_loaded("other one", loaded));
        assert!(!is_loaded("min", loaded) && !is_loaded("other", loaded) && !is_loaded("", loaded));
    }

    #[test]
    fn the_default_profile_names_the_agent_and_its_language() {
        let text = default_profile("/usr/bin/pulselet", true);
        assert!(
            text.starts_with("abi <abi/3.0>,\nprofile pulselet-default "),
            "{text}"
        );
        assert!(
            text.contains("signal (receive) peer=/usr/bin/pulselet,"),
            "{text}"
        );
        assert!(default_profile("unconfined", false).starts_with("profile "));
    }
}
