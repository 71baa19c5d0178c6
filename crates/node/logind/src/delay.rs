//! How long logind lets a shutdown be held up: five seconds unless its settings say otherwise.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::bus::{Logind, LogindError};

/// The name of our addition to logind's settings; it is read after most others.
const FILE: &str = "99-pulselet.conf";
/// How often logind is asked whether it has read its settings, with pauses that double.
const LOOKS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Why logind does not wait as long as it should.
#[derive(Debug, thiserror::Error)]
enum DelayError {
    #[error(transparent)]
    Logind(#[from] LogindError),
    #[error("cannot write {FILE}: {0}")]
    Write(io::Error),
    #[error("logind keeps to {0:?}")]
    Kept(Duration),
}

/// Has logind wait at least that long. Where that fails, pods have the time that logind gives, which is said.
pub(crate) async fn ensure(logind: &Logind, wanted: Duration, directory: &Path) {
    if let Err(error) = raise(logind, wanted, directory).await {
        tracing::warn!(
            %error,
            "logind does not hold up shutdowns for shutdownGracePeriod; set InhibitDelayMaxSec={} in its settings",
            wanted.as_secs()
        );
    }
}

async fn raise(logind: &Logind, wanted: Duration, directory: &Path) -> Result<(), DelayError> {
    if logind.longest_delay().await? >= wanted {
        return Ok(());
    }
    let text = format!(
        "# Written by pulselet for its shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec={}\n",
        wanted.as_secs_f64().ceil()
    );
    std::fs::create_dir_all(directory).map_err(DelayError::Write)?;
    std::fs::write(directory.join(FILE), text).map_err(DelayError::Write)?;
    logind.reload().await?;
    let mut pause = FIRST_PAUSE;
    for _ in 0..LOOKS {
        if logind.longest_delay().await? >= wanted {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(DelayError::Kept(logind.longest_delay().await?))
}
