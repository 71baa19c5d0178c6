//! What cannot be a container of any kind is refused before anything is written.

use pulselet_runtime::{ContainerConfig, Error, Result, SandboxConfig};

pub(crate) fn container(config: &ContainerConfig) -> Result<()> {
    let words = || config.command.iter().chain(&config.args);
    if words().any(|word| word.contains('\0')) {
        return invalid("command", "must not contain a zero byte".into());
    }
    let unusable = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    if let Some(var) = config.env.iter().find(|var| unusable(&var.name)) {
        return invalid("env", format!("{:?} is not the name of a variable", var.name));
    }
    if let Some(var) = config.env.iter().find(|var| var.value.contains('\0')) {
        let detail = format!("the value of {} must not contain a zero byte", var.name);
        return invalid("env", detail);
    }
    if !config.log_path.is_absolute() {
        let detail = format!("{} is not absolute", config.log_path.display());
        return invalid("log_path", detail);
    }
    let relative = |dir: &str| !dir.starts_with('/') || dir.contains('\0');
    if config.working_dir.as_deref().is_some_and(relative) {
        return invalid("working_dir", "must be an absolute path".into());
    }
    Ok(())
}

/// Containers with a shim are run in one way, which has no name.
pub(crate) fn sandbox(config: &SandboxConfig) -> Result<()> {
    let handler = &config.runtime_handler;
    if !handler.is_empty() {
        let detail = format!("no runtime for {handler:?} is configured");
        return invalid("runtime_handler", detail);
    }
    Ok(())
}

/// The command of an exec process.
pub(crate) fn command(command: &[String]) -> Result<()> {
    if command.is_empty() {
        return invalid("command", "is required".into());
    }
    if command.iter().any(|word| word.contains('\0')) {
        return invalid("command", "must not contain a zero byte".into());
    }
    Ok(())
}

fn invalid(field: &'static str, detail: String) -> Result<()> {
    Err(Error::Invalid { field, detail })
}

#[cfg(test)]
mod tests {
    use pulselet_runtime::EnvVar;

    use super::*;

    #[test]
    fn there_is_one_way_to_run_a_pod() {
        let mut config = SandboxConfig::default();
        assert!(sandbox(&config).is_ok());
        config.runtime_handler = "kata".into();
        let refused = sandbox(&config).expect_err("there is no such handler");
        assert!(
            refused
                .to_string()
                .ends_with("no runtime for \"kata\" is configured")
        );
    }

    fn refused(change: impl FnOnce(&mut ContainerConfig)) -> String {
        let mut config = ContainerConfig {
            log_path: "/tmp/0.log".into(),
            ..Default::default()
        };
        container(&config).expect("the base is fine");
        change(&mut config);
        container(&config).expect_err("it was made wrong").to_string()
    }

    #[test]
    fn each_wrong_field_is_named() {
        assert!(refused(|c| c.args.push("a\0b".into())).starts_with("command: "));
        let var = |name: &str, value: &str| EnvVar {
            name: name.into(),
            value: value.into(),
        };
        assert!(refused(|c| c.env.push(var("A=B", ""))).starts_with("env: "));
        assert!(refused(|c| c.env.push(var("A", "\0"))).starts_with("env: "));
        assert!(refused(|c| c.log_path = "0.log".into()).starts_with("log_path: "));
        assert!(refused(|c| c.working_dir = Some("x".into())).starts_with("working_dir: "));
        assert!(command(&[]).is_err() && command(&["a\0".into()]).is_err());
    }
}
