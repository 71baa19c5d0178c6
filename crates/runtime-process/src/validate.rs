//! What cannot be a container is refused before anything is written.

use pulselet_runtime::{ContainerConfig, Error, Result};

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
    if config
        .command
        .iter()
        .chain(&config.args)
        .any(|word| word.contains('\0'))
    {
        return invalid("command", "must not contain a zero byte".into());
    }
    if let Some(var) = config
        .env
        .iter()
        .find(|var| var.name.is_empty() || var.name.contains(['=', '\0']))
    {
        return invalid("env", format!("{:?} is not the name of a variable", var.name));
    }
    if let Some(var) = config.env.iter().find(|var| var.value.contains('\0')) {
        return invalid(
            "env",
            format!("the value of {} must not contain a zero byte", var.name),
        );
    }
    if !config.log_path.is_absolute() {
        return invalid(
            "log_path",
            format!("{} is not absolute", config.log_path.display()),
        );
    }
    if config
        .working_dir
        .as_deref()
        .is_some_and(|dir| !dir.starts_with('/') || dir.contains('\0'))
    {
        return invalid("working_dir", "must be an absolute path".into());
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::{EnvVar, Mount, Propagation};

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
        assert!(refused(|c| c.args.push("a\0b".into())).starts_with("command: "));
        let var = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: value.into(),
        };
        assert!(refused(|c| c.env.push(var("A=B", ""))).starts_with("env: "));
        assert!(refused(|c| c.env.push(var("A", "\0"))).starts_with("env: "));
        assert!(refused(|c| c.log_path = "0.log".into()).starts_with("log_path: "));
        assert!(refused(|c| c.working_dir = Some("x".into())).starts_with("working_dir: "));
        let mount = Mount {
            volume: "../x".into(),
            container_path: "/x".into(),
            host_path: "/x".into(),
            read_only: false,
            propagation: Propagation::Private,
        };
        assert!(refused(|c| c.mounts.push(mount)).starts_with("mounts: "));
    }
}
