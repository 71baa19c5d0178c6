//! An agent that makes, stops and removes containers as fast as it can until somebody kills it, for tests. Its arguments
//! are the runtime's root and the shim's program.

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use pulselet_runtime::{ContainerConfig, EnvVar, PodIdentity, Result, Runtime, SandboxConfig};
use pulselet_runtime_process::{ProcessRuntime, ShimCommand};

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = env::args_os().skip(1).map(PathBuf::from);
    let (Some(root), Some(program)) = (args.next(), args.next()) else {
        return ExitCode::FAILURE;
    };
    let shim = ShimCommand {
        program,
        args: Vec::new(),
    };
    let runtime = match ProcessRuntime::open(&root, shim).await {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut agents = tokio::task::JoinSet::new();
    for number in 0..4 {
        agents.spawn(churn(runtime.clone(), root.clone(), number));
    }
    for result in agents.join_all().await {
        if let Err(error) = result {
            eprintln!("{error}");
        }
    }
    ExitCode::FAILURE
}

/// Ends only with an error.
async fn churn(runtime: ProcessRuntime, root: PathBuf, number: u32) -> Result<()> {
    for attempt in 0.. {
        let pod = PodIdentity {
            uid: format!("{}-{number}-{attempt}", std::process::id()),
            ..PodIdentity::default()
        };
        let sandbox = runtime
            .run_sandbox(&SandboxConfig {
                pod: pod.clone(),
                ..SandboxConfig::default()
            })
            .await?;
        let config = ContainerConfig {
            pod,
            name: "main".into(),
            command: ["sh", "-c", "setsid sleep 1000 & sleep 1000"]
                .map(String::from)
                .to_vec(),
            env: vec![EnvVar {
                name: "CHURN".into(),
                value: root.display().to_string(),
            }],
            log_path: root.join(format!("{number}.log")),
            ..ContainerConfig::default()
        };
        let id = runtime.create_container(&sandbox, &config).await?;
        runtime.start_container(&id).await?;
        runtime.stop_container(&id, Duration::from_millis(5)).await?;
        runtime.remove_sandbox(&sandbox).await?;
    }
    Ok(())
}
