//! Volumes that the node writes: made before a pod's sandbox, then kept up to date.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::Timestamp;
use pulselet_model::Pod;
use thiserror::Error;

use super::{News, PodRef, Tools};
use crate::container::{
    Contents, ContentsError, StoreError, TokenWish, Tokens, VolumeFiles, WrittenVolume, discard,
};
use crate::objects::{GivenToken, Kept, Objects, Record, SourceError, Token, TokenRequest, Wanted};

/// After this long at the soonest objects are looked at again, and after [`REFRESH_SPREAD`] more at the latest: nodes
/// that were started together do not ask together.
const REFRESH_PAUSE: Duration = Duration::from_secs(8);
const REFRESH_SPREAD: Duration = Duration::from_secs(4);
/// Pods whose objects are looked at at once.
const REFRESHES_AT_ONCE: usize = 8;
/// How long a token may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the files of a volume could not be written.
#[derive(Debug, Error)]
enum VolumeError {
    #[error(transparent)]
    Contents(#[from] ContentsError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A volume that is not as it should be.
#[derive(Debug)]
struct Failure {
    volume: String,
    error: VolumeError,
}

impl Failure {
    fn message(&self) -> String {
        format!(
            "MountVolume.SetUp failed for volume {:?} : {}",
            self.volume, self.error
        )
    }

    fn is_outage(&self) -> bool {
        match &self.error {
            VolumeError::Contents(error) => error.is_outage(),
            VolumeError::Store(_) => false,
        }
    }
}

impl Tools {
    /// Writes every volume of a pod whose sandbox is about to be made. False if one is missing, which is told.
    pub(super) async fn set_up_volumes(&self, pod: &PodRef) -> bool {
        let Some(kept) = self.volumes.keep(pod) else {
            return true;
        };
        let mut record = kept.lock().await;
        record.renew(pod.clone());
        let failures = self.bring_up_to_date(&mut record).await;
        let messages: Vec<_> = failures.iter().map(Failure::message).collect();
        let is_news = messages != record.told;
        record.told.clone_from(&messages);
        if messages.is_empty() {
            return true;
        }
        let pod = record.pod.key;
        self.answer(pod, News::FailedMount { messages, is_news }).await;
        false
    }

    /// The pod has ended: nothing is written for it any more, and what it had in memory goes.
    pub(super) async fn end_volumes(&self, uid: &str) {
        self.volumes.forget(uid).await;
        let memory = self.layout.memory(uid);
        let gone = tokio::task::spawn_blocking(move || {
            if let Err(error) = discard(&memory) {
                tracing::warn!(path = %memory.display(), %error, "cannot remove the secrets of a pod");
            }
        });
        gone.await.expect("removing does not panic");
    }

    /// The manifest of a running pod has changed.
    pub(crate) async fn update_volumes(&self, pod: PodRef) {
        if let Some(kept) = self.volumes.get(&pod.uid) {
            kept.lock().await.renew(pod);
            self.refresh(&kept).await;
        }
    }

    /// Keeps the volumes of all pods up to date, for as long as it is polled.
    pub(crate) async fn keep_volumes(self: Arc<Self>) {
        loop {
            tokio::time::sleep(pause()).await;
            stream::iter(self.volumes.all())
                .for_each_concurrent(REFRESHES_AT_ONCE, async |kept| self.refresh(&kept).await)
                .await;
        }
    }

    /// A volume that cannot be written keeps its files. An API that is away is not the pod's trouble.
    async fn refresh(&self, kept: &Kept) {
        let mut record = kept.lock().await;
        let failures = self.bring_up_to_date(&mut record).await;
        for failure in failures.iter().filter(|failure| failure.is_outage()) {
            tracing::debug!(pod = %record.pod.uid, volume = failure.volume, error = %failure.error, "cannot refresh");
        }
        let lasting = failures.iter().filter(|failure| !failure.is_outage());
        let messages: Vec<_> = lasting.map(Failure::message).collect();
        if messages == record.told {
            return;
        }
        record.told.clone_from(&messages);
        let is_news = true;
        let pod = record.pod.key;
        self.answer(pod, News::FailedMount { messages, is_news }).await;
    }

    async fn bring_up_to_date(&self, record: &mut Record) -> Vec<Failure> {
        if record.over {
            return Vec::new();
        }
        let spec = Arc::clone(&record.pod.spec);
        let mut wanted = Wanted::default();
        for contents in spec.spec.volumes.iter().filter_map(Contents::of) {
            contents.want(&mut wanted);
        }
        let objects = Objects::fetch(&*self.objects, spec.namespace(), wanted).await;
        let tokens = self.tokens(record, &spec).await;
        let mut failures = Vec::new();
        for volume in &spec.spec.volumes {
            let Some(contents) = Contents::of(volume) else {
                continue;
            };
            let place = WrittenVolume::of(&self.layout, &record.pod.uid, volume);
            let Some(place) = place else { continue };
            let versions = contents.versions(&objects, &tokens);
            let known = record.versions.get(&volume.name);
            if versions.is_some() && known == versions.as_ref() && place.directory().is_some() {
                continue;
            }
            let files = record.pod.with_context(self, |context| {
                contents.files(context.downward, &objects, &tokens)
            });
            let written = match files {
                Ok(files) => self.store(place, files).await.map_err(VolumeError::from),
                Err(error) => Err(error.into()),
            };
            let volume = volume.name.clone();
            match (written, versions) {
                (Ok(()), Some(versions)) => drop(record.versions.insert(volume, versions)),
                (Ok(()), None) => drop(record.versions.remove(&volume)),
                (Err(error), _) => failures.push(Failure { volume, error }),
            }
        }
        failures
    }

    async fn store(&self, place: WrittenVolume, files: VolumeFiles) -> Result<(), StoreError> {
        let _permit = self.limits.operations.acquire().await;
        // The disk may not answer.
        tokio::task::spawn_blocking(move || place.store(&files))
            .await
            .expect("writing a volume does not panic")
    }

    /// The tokens that a pod's volumes want. One that is due is renewed; while that fails, the old one is used.
    async fn tokens(&self, record: &mut Record, spec: &Pod) -> Tokens {
        let contents = spec.spec.volumes.iter().filter_map(Contents::of);
        let wishes: Vec<_> = contents.flat_map(|it| it.tokens().collect::<Vec<_>>()).collect();
        let mut tokens = Tokens::new();
        for wish in wishes {
            let now = Timestamp::now();
            let known = record.tokens.get(&wish);
            if let Some(given) = known.filter(|given| !given.is_due(now)) {
                tokens.insert(wish, Ok(given.token.clone()));
                continue;
            }
            let result = self.request_token(&record.pod, &wish).await;
            let token = match (result, known.filter(|given| given.is_good(now))) {
                (Ok(token), _) => {
                    let given_at = now;
                    let given = GivenToken {
                        token: token.clone(),
                        given_at,
                    };
                    record.tokens.insert(wish.clone(), given);
                    Ok(token)
                }
                (Err(error), Some(given)) => {
                    tracing::debug!(pod = %record.pod.uid, %error, "cannot renew a token");
                    Ok(given.token.clone())
                }
                (Err(error), None) => Err(error),
            };
            tokens.insert(wish, token);
        }
        tokens
    }

    async fn request_token(&self, pod: &PodRef, wish: &TokenWish) -> Result<Token, SourceError> {
        let spec = &pod.spec;
        let account = Some(spec.spec.service_account_name.clone()).filter(|name| !name.is_empty());
        let request = TokenRequest {
            namespace: spec.namespace().to_owned(),
            service_account: account.unwrap_or_else(|| "default".to_owned()),
            pod_name: spec.name().to_owned(),
            pod_uid: pod.uid.to_string(),
            audiences: wish.audience.iter().cloned().collect(),
            expiration_seconds: wish.seconds,
        };
        match tokio::time::timeout(TOKEN_TIMEOUT, self.objects.token(&request)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(SourceError::Fetch {
                message: format!("the API did not answer: {elapsed}"),
            }),
        }
    }
}

fn pause() -> Duration {
    let random = RandomState::new().hash_one(());
    let spread = u64::try_from(REFRESH_SPREAD.as_millis()).unwrap_or(u64::MAX);
    REFRESH_PAUSE + Duration::from_millis(random % spread)
}
