//! What cannot be a host process is refused before anything is written.

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
    use pulselet_runtime::{Mount, Propagation};

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
            sub_path: None,
            read_only: false,
            propagation: Propagation::Private,
        };
        assert!(refused(|c| c.mounts.push(mount)).starts_with("mounts: "));
    }
}
