//! What cannot be a host process is refused before anything is written.

use pulselet_runtime::{ContainerConfig, Error, PidNamespace, Result, SecurityContext};
use rustix::process::geteuid;

/// Names that become names of files: no separators, no way up.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name.len() <= 253 && !name.contains(['/', '\0'])
}

pub(crate) fn container(config: &ContainerConfig) -> Result<()> {
    let invalid = |field, detail: String| Err(Error::Invalid { field, detail });
    if config.command.is_empty() {
        return invalid(
            "command",
            "is required: host processes have no image that could have one".into(),
        );
    }
    if let Some(mount) = config
        .mounts
        .iter()
        .find(|mount| !mount.volume.is_empty() && !is_plain_name(&mount.volume))
    {
        return invalid(
            "mounts",
            format!("{:?} is not the name of a volume", mount.volume),
        );
    }
    if let Some(mount) = config.mounts.iter().find(|mount| mount.image.is_some()) {
        return invalid(
            "mounts",
            format!(
                "volume {:?} is an image, and host processes have none: use --runtime oci",
                mount.volume
            ),
        );
    }
    if config
        .pid_namespace
        .is_some_and(|mode| mode != PidNamespace::Host)
    {
        return invalid(
            "pid_namespace",
            "host processes have no process namespace but the host's".into(),
        );
    }
    user(&config.security, geteuid().as_raw())
}

/// Only root becomes somebody else. `agent` is whom the agent runs as.
fn user(security: &SecurityContext, agent: u32) -> Result<()> {
    let other_user = security.run_as_user.is_some_and(|user| user != agent);
    let other_groups =
        security.run_as_group.is_some() || security.strict_groups || !security.supplemental_groups.is_empty();
    if agent == 0 || !(other_user || other_groups) {
        return Ok(());
    }
    let field = if other_user { "runAsUser" } else { "groups" };
    let detail = format!(
        "cannot be changed by an agent that runs as user {agent}: run it as root, or leave users and groups out of \
         the security context"
    );
    Err(Error::Invalid { field, detail })
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{Mount, MountedImage, Propagation};

    use super::*;

    fn refused(change: impl FnOnce(&mut ContainerConfig)) -> String {
        let mut config = ContainerConfig {
            command: vec!["true".into()],
            log_path: "/tmp/0.log".into(),
            ..Default::default()
        };
        container(&config).expect("the base is fine");
        change(&mut config);
        container(&config).expect_err("it was made wrong").to_string()
    }

    #[test]
    fn each_wrong_field_is_named() {
        assert!(refused(|c| c.command.clear()).starts_with("command: is required"));
        let mount = Mount {
            volume: "../x".into(),
            container_path: "/x".into(),
            host_path: "/x".into(),
            image: None,
            sub_path: None,
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
        };
        assert!(refused(|c| c.mounts.push(mount.clone())).starts_with("mounts: "));
        let of_image = Mount {
            volume: "v".into(),
            image: Some(MountedImage {
                reference: "data:1".into(),
                id: "sha256:1".into(),
            }),
            ..mount
        };
        assert!(refused(|c| c.mounts.push(of_image)).contains("--runtime oci"));
    }

    #[test]
    fn an_agent_that_is_not_root_runs_nobody_elses_processes() {
        let refused = |agent, change: fn(&mut SecurityContext)| {
            let mut security = SecurityContext::default();
            change(&mut security);
            user(&security, agent).err().map(|error| error.to_string())
        };
        assert_eq!(refused(1000, |_| ()), None);
        assert_eq!(refused(1000, |security| security.run_as_user = Some(1000)), None);
        assert_eq!(refused(0, |security| security.run_as_user = Some(7)), None);
        let message = refused(1000, |security| security.run_as_user = Some(7)).expect("refused");
        assert!(message.starts_with("runAsUser: cannot be changed by an agent that runs as user 1000"));
        for change in [
            |security: &mut SecurityContext| security.run_as_group = Some(1),
            |security: &mut SecurityContext| security.supplemental_groups = vec![1],
            |security: &mut SecurityContext| security.strict_groups = true,
        ] {
            assert!(refused(1000, change).is_some_and(|message| message.starts_with("groups: ")));
        }
    }
}
