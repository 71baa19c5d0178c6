//! One life of a container in the runtime: create, start, stop, remove.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pulselet_engine::io::{CreateError, Exit, Input};
use pulselet_engine::{Identity, LifeKey, PodKey};
use pulselet_runtime::{
    ContainerConfig, ContainerFilter, ContainerId, ContainerState, ContainerStatus, Error, MountedImage,
    Operation, Result,
};
use pulselet_vocabulary::{Signal, exit_code};
use pulselet_volume::{Objects, discard};

use super::{JobContext, JobResult, PodRef, Retry, bounded};
use crate::container_config::{
    ConfigError, ImageFacts, ImageUser, Made, container_config, depends_on_image, log_path, wanted_objects,
};

#[derive(Debug)]
pub(crate) struct CreateJob {
    pub(crate) pod: PodRef,
    pub(crate) life: LifeKey,
    pub(crate) name: Arc<str>,
    pub(crate) image_id: String,
    /// The names of the volumes that are images, with what they show.
    pub(crate) image_volumes: Vec<(String, Arc<str>)>,
    pub(crate) stop_signal: Option<Signal>,
    pub(crate) target: Target,
}

/// Whose processes a container is to see besides its own.
#[derive(Debug)]
pub(crate) enum Target {
    None,
    Running(ContainerId),
    /// The container of that name does not run.
    Missing(String),
}

#[derive(Debug)]
pub(crate) struct StopJob {
    pub(crate) pod: PodKey,
    pub(crate) life: LifeKey,
    pub(crate) id: ContainerId,
    pub(crate) grace: Duration,
    /// The signal the runtime will send.
    pub(crate) signal: Signal,
    /// How long the runtime has to do it by itself.
    pub(crate) delay: Duration,
}

#[derive(Debug)]
pub(crate) struct SignalsJob {
    pub(crate) pod: PodKey,
    pub(crate) life: LifeKey,
    pub(crate) id: ContainerId,
    /// The effective stop signal.
    pub(crate) signal: Signal,
    pub(crate) delay: Duration,
}

#[derive(Debug)]
pub(crate) struct RemoveJob {
    pub(crate) pod: Identity,
    pub(crate) name: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) id: Option<ContainerId>,
}

impl JobContext {
    pub(crate) async fn create(self: Arc<Self>, job: CreateJob) {
        let key = job.pod.key;
        let life = job.life;
        let name = Arc::clone(&job.name);
        let failed = |reason, message| Input::CreateFailed {
            life,
            reason,
            message,
        };
        let (pod, made) = Arc::clone(&self).configure(job).await;
        let Made { config, warnings } = match made {
            Ok(made) => made,
            Err(error) => {
                let input = failed(CreateError::CreateContainerConfigError, error.to_string());
                return self.send_input(key, input).await;
            }
        };
        for (reason, message) in warnings {
            let container = Arc::clone(&name);
            let result = JobResult::Warning {
                container,
                reason,
                message,
            };
            self.answer(key, result).await;
        }
        let _permit = self.limits.operations.acquire().await;
        match self.create_container(&pod, &config).await {
            Ok(status) => self.answer(key, JobResult::Container(Box::new(status))).await,
            Err(error) => {
                let input = failed(CreateError::CreateContainerError, error.to_string());
                self.send_input(key, input).await;
            }
        }
    }

    /// Asks for the objects the container is made from, then makes its configuration.
    async fn configure(self: Arc<Self>, job: CreateJob) -> (PodRef, std::result::Result<Made, ConfigError>) {
        let pid_target = match &job.target {
            Target::None => None,
            Target::Running(id) => Some(id.clone()),
            Target::Missing(name) => {
                let target = name.clone();
                return (job.pod, Err(ConfigError::NoTarget { target }));
            }
        };
        let pod = &job.pod.spec;
        let mounted = match self.mounted_images(&job.image_volumes).await {
            Ok(mounted) => mounted,
            Err(error) => return (job.pod, Err(error)),
        };
        let image = ImageFacts {
            user: self.image_user(&job).await,
            id: job.image_id.clone(),
            mounted,
        };
        let wanted = wanted_objects(pod, &job.name);
        let objects = Objects::fetch(&*self.objects, pod.namespace(), wanted).await;
        let _permit = self.limits.operations.acquire().await;
        let jobs = Arc::clone(&self);
        // Volumes may be on a disk that does not answer.
        let made = tokio::task::spawn_blocking(move || {
            let signal = job.stop_signal;
            let made = job.pod.with_context(&jobs, |context| {
                let attempt = job.life.attempt;
                container_config(context, &objects, &job.name, attempt, signal, image)
            });
            let made = made.map(|mut made| {
                made.config.pid_target = pid_target;
                made
            });
            (job.pod, made)
        });
        made.await.expect("making a configuration does not panic")
    }

    /// What the images that are volumes are now, by the volumes' names.
    async fn mounted_images(
        &self,
        volumes: &[(String, Arc<str>)],
    ) -> std::result::Result<BTreeMap<String, MountedImage>, ConfigError> {
        let mut mounted = BTreeMap::new();
        for (volume, reference) in volumes {
            let failed = |why: String| ConfigError::ImageVolume {
                volume: volume.clone(),
                why,
            };
            if !self.version.features.images {
                return Err(failed(
                    "host processes have no images: use --runtime oci".to_owned(),
                ));
            }
            let status = bounded(Operation::ImageStatus, self.runtime.image_status(reference)).await;
            let image = status
                .map_err(|error| failed(error.to_string()))?
                .ok_or_else(|| failed(format!("image {reference:?} is not there")))?;
            let image = MountedImage {
                reference: reference.to_string(),
                id: image.id,
            };
            mounted.insert(volume.clone(), image);
        }
        Ok(mounted)
    }

    /// Asked for only where somebody wants to know.
    async fn image_user(&self, job: &CreateJob) -> ImageUser {
        if !depends_on_image(&job.pod.spec, &job.name) {
            return ImageUser::Unknown;
        }
        if !self.version.features.images {
            return ImageUser::Number(rustix::process::geteuid().as_raw());
        }
        let asked = self.runtime.image_status(&job.image_id);
        let image = bounded(Operation::ImageStatus, asked).await;
        match image.ok().flatten().map(|image| (image.uid, image.username)) {
            Some((Some(uid), _)) => ImageUser::Number(uid),
            Some((None, Some(name))) => ImageUser::Name(name),
            Some((None, None)) | None => ImageUser::Unknown,
        }
    }

    async fn create_container(&self, pod: &PodRef, config: &ContainerConfig) -> Result<ContainerStatus> {
        let Some(location) = &pod.location else {
            return Err(Error::no_sandbox(&pod.uid));
        };
        let created = self.runtime.create_container(&location.sandbox, config);
        let id = match bounded(Operation::CreateContainer, created).await {
            // An earlier agent made it and died before it could say so.
            Err(Error::AlreadyExists { .. }) => return self.find_container(pod, config).await,
            other => other?,
        };
        bounded(Operation::ContainerStatus, self.runtime.container_status(&id)).await
    }

    async fn find_container(&self, pod: &PodRef, config: &ContainerConfig) -> Result<ContainerStatus> {
        let filter = ContainerFilter {
            pod_uid: Some(pod.uid.to_string()),
            ..ContainerFilter::default()
        };
        let all = bounded(Operation::List, self.runtime.list_containers(&filter)).await?;
        let wanted =
            |status: &ContainerStatus| status.name == config.name && status.attempt == config.attempt;
        all.into_iter()
            .find(wanted)
            .ok_or_else(|| Error::no_container(&config.name))
    }

    pub(crate) async fn start(&self, pod: PodKey, life: LifeKey, id: ContainerId) {
        let _permit = self.limits.operations.acquire().await;
        let started = bounded(Operation::StartContainer, self.runtime.start_container(&id)).await;
        let status = bounded(Operation::ContainerStatus, self.runtime.container_status(&id)).await;
        let message = match (started, status) {
            (Err(Error::CannotRun { message }), _) => message,
            // Whatever the call said, it runs or has run: an answer was lost, or an earlier agent started it.
            (_, Ok(status)) if !matches!(status.state, ContainerState::Created | ContainerState::Unknown) => {
                return self.answer(pod, JobResult::Container(Box::new(status))).await;
            }
            (Err(error), _) | (Ok(()), Err(error)) => error.to_string(),
            (Ok(()), Ok(_)) => "the runtime did not start it".to_owned(),
        };
        // A start that failed must not happen after all once the engine has gone on.
        self.kill(&id, Duration::ZERO).await;
        self.send_input(pod, Input::StartFailed { life, message }).await;
    }

    /// Stops a container, however long that takes: there is no other way on.
    async fn kill(&self, id: &ContainerId, grace: Duration) {
        let began = self.clock.now();
        let mut retry = Retry::new();
        loop {
            let spent = Duration::from(self.clock.now().since(began));
            match self.runtime.stop_container(id, grace.saturating_sub(spent)).await {
                Ok(()) | Err(Error::NotFound { .. }) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot stop the container, will try again");
                }
            }
            retry.wait().await;
        }
    }

    /// Stops a container, with grace zero at once. The exit itself comes as an event of the runtime.
    pub(crate) async fn stop(&self, job: StopJob) {
        let StopJob {
            pod,
            life,
            id,
            grace,
            signal,
            delay,
        } = job;
        tokio::time::sleep(delay).await;
        // Reported before the call, so that it always comes before the exit that follows from it.
        let at = self.clock.now();
        self.answer(pod, JobResult::Signalled { life, signal, at }).await;
        self.kill(&id, grace).await;
        // The event may have been missed; reporting it twice does no harm.
        if let Ok(status) = bounded(Operation::ContainerStatus, self.runtime.container_status(&id)).await {
            self.answer(pod, JobResult::Container(Box::new(status))).await;
        }
    }

    /// Looks what the container's main process does about its stop signal. What cannot be seen is not reported.
    pub(crate) async fn read_signals(&self, job: SignalsJob) {
        let SignalsJob {
            pod,
            life,
            id,
            signal,
            delay,
        } = job;
        tokio::time::sleep(delay).await;
        let masks = bounded(Operation::ContainerStatus, self.runtime.signal_masks(&id)).await;
        if let Ok(Some(masks)) = masks
            && !masks.handles(signal)
        {
            self.send_input(pod, Input::StopSignalUnhandled { life, signal })
                .await;
        }
    }

    /// Asks how a container is.
    pub(crate) async fn describe(&self, pod: PodKey, id: ContainerId) {
        // One that cannot be described now is found by the next listing.
        if let Ok(status) = bounded(Operation::ContainerStatus, self.runtime.container_status(&id)).await {
            self.answer(pod, JobResult::Container(Box::new(status))).await;
        }
    }

    /// Says that a life is gone that the runtime never had.
    pub(crate) async fn lost(&self, pod: PodKey, life: LifeKey) {
        let exit = Exit {
            code: exit_code::UNKNOWN,
            at: self.clock.now(),
            oom_killed: false,
            message: Some("The container could not be located when the pod was looked at".to_owned()),
            stop: None,
        };
        self.send_input(pod, Input::Exited { life, exit }).await;
    }

    /// Removes the files of a pod that is over.
    pub(crate) async fn clean_up(&self, key: PodKey, pod: Identity, keeps_logs: bool) {
        let logs = self.layout.pod_logs(&pod.namespace, &pod.name, &pod.uid);
        self.volumes.forget(&pod.uid).await;
        // A pod that never had a sandbox may have had one.
        self.remove_cgroup(&pod.uid).await;
        let logs = (!keeps_logs).then_some(logs);
        for path in [Some(self.layout.pod(&pod.uid)), logs].into_iter().flatten() {
            let span = tracing::Span::current();
            let removed = tokio::task::spawn_blocking(move || {
                let _entered = span.entered();
                if let Err(error) = discard(&path) {
                    tracing::warn!(path = %path.display(), %error, "cannot remove what is left of a pod");
                }
            });
            removed.await.expect("removing does not panic");
        }
        self.answer(key, JobResult::CleanedUp).await;
    }

    /// Removes the record of a life and its log.
    pub(crate) async fn remove(&self, job: RemoveJob) {
        let _permit = self.limits.operations.acquire().await;
        if let Some(id) = &job.id
            && let Err(error) = bounded(Operation::RemoveContainer, self.runtime.remove_container(id)).await
            && !error.is_not_found()
        {
            tracing::warn!(%error, "cannot remove the container; it goes with its pod");
        }
        let Identity { namespace, name, uid } = &job.pod;
        let log = log_path(
            &self.layout.pod_logs(namespace, name, uid),
            &job.name,
            job.attempt,
        );
        let message = self.layout.termination_message(uid, &job.name, job.attempt);
        for path in [log, message] {
            // Rotated pieces and what is gone already are not worth a word.
            let _ = tokio::fs::remove_file(path).await;
        }
    }
}
