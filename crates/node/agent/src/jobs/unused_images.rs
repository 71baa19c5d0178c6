//! Images that nobody uses: remembered, and removed when the disk fills up.
//!
//! What always holds: an image that a container or a pod of this node needs stays, and so does one that came a moment
//! ago, whose container may be about to be made. Those that were not used for longest go first.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pulselet_runtime::{ContainerFilter, ImageSummary, Operation, Result};

use super::{JobContext, bounded};

/// When images were seen and used, as far as this agent knows.
#[derive(Debug, Default)]
pub(crate) struct ImageUse {
    seen: Mutex<HashMap<String, Seen>>,
    /// What the pods of this node name.
    wanted: Mutex<HashSet<Arc<str>>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Instant,
    last_used: Option<Instant>,
}

impl ImageUse {
    pub(crate) fn want(&self, images: HashSet<Arc<str>>) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = images;
    }

    fn wanted(&self) -> Vec<Arc<str>> {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.iter().cloned().collect()
    }

    /// Notes what there is, and returns what is not in use, the one that was not used for longest first.
    fn observe(
        &self,
        images: Vec<ImageSummary>,
        in_use: &HashSet<String>,
        now: Instant,
    ) -> Vec<(ImageSummary, Seen)> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|id, _| images.iter().any(|image| image.id == *id));
        let mut unused = Vec::new();
        for image in images {
            let entry = seen.entry(image.id.clone()).or_insert(Seen {
                first: now,
                last_used: None,
            });
            if in_use.contains(&image.id) {
                entry.last_used = Some(now);
            } else {
                unused.push((image, *entry));
            }
        }
        unused.sort_by_key(|(_, seen)| (seen.last_used, seen.first));
        unused
    }
}

impl JobContext {
    /// Looks at the images, and makes room if they have taken too much of the disk.
    pub(crate) async fn look_after_images(self: Arc<Self>) {
        let Ok(_permit) = self.limits.images.try_acquire() else {
            return;
        };
        let excess = self.signals.read().disk.map_or(0, |disk| {
            let used = disk.capacity.saturating_sub(disk.available);
            excess(
                used,
                disk.capacity,
                self.duties.images.high_percent,
                self.duties.images.low_percent,
            )
        });
        self.remove_unused_images(excess).await;
    }

    /// Removes images until so many bytes are free, as far as there are unused ones.
    pub(super) async fn remove_unused_images(&self, wanted_bytes: u64) {
        match self.unused_images().await {
            Ok(unused) => self.remove_until(unused, wanted_bytes).await,
            Err(error) => tracing::warn!(%error, "cannot find out which images are not used"),
        }
    }

    async fn unused_images(&self) -> Result<Vec<(ImageSummary, Seen)>> {
        let images = bounded(Operation::List, self.runtime.list_images()).await?;
        let filter = ContainerFilter::default();
        let containers = bounded(Operation::List, self.runtime.list_containers(&filter)).await?;
        let mut in_use: HashSet<String> = containers
            .into_iter()
            .map(|container| container.image_id)
            .collect();
        for name in self.images.wanted() {
            let image = bounded(Operation::ImageStatus, self.runtime.image_status(&name)).await?;
            in_use.extend(image.map(|image| image.id));
        }
        Ok(self.images.observe(images, &in_use, Instant::now()))
    }

    async fn remove_until(&self, unused: Vec<(ImageSummary, Seen)>, wanted_bytes: u64) {
        let least_age = std::time::Duration::from_micros(self.duties.images.minimum_age.as_micros());
        let mut freed = 0_u64;
        for (image, seen) in unused {
            if freed >= wanted_bytes {
                return;
            }
            if seen.first.elapsed() < least_age {
                continue;
            }
            match self.remove_image(&image).await {
                Ok(()) => {
                    tracing::info!(
                        image = image.id,
                        bytes = image.size,
                        "removed an image that nobody uses"
                    );
                    freed = freed.saturating_add(image.size);
                }
                Err(error) => {
                    tracing::warn!(image = image.id, %error, "cannot remove an image that nobody uses");
                }
            }
        }
    }

    /// By all of its names: an image that has one left stays.
    async fn remove_image(&self, image: &ImageSummary) -> Result<()> {
        let names = image.tags.iter().chain(&image.digests);
        for name in names {
            // Without one name the next may be gone, too.
            let there = bounded(Operation::ImageStatus, self.runtime.image_status(name)).await?;
            if there.is_some() {
                bounded(Operation::RemoveImage, self.runtime.remove_image(name)).await?;
            }
        }
        let left = bounded(Operation::ImageStatus, self.runtime.image_status(&image.id)).await?;
        if left.is_some() {
            bounded(Operation::RemoveImage, self.runtime.remove_image(&image.id)).await?;
        }
        Ok(())
    }
}

/// Bytes that have to go: down to the lower mark once the upper one is reached.
fn excess(used: u64, capacity: u64, high_percent: u8, low_percent: u8) -> u64 {
    let part = |percent: u8| u128::from(capacity) * u128::from(percent) / 100;
    if high_percent >= 100 || u128::from(used) < part(high_percent) {
        return 0;
    }
    u64::try_from(u128::from(used).saturating_sub(part(low_percent))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_down_to_the_lower_mark() {
        assert_eq!(excess(84, 100, 85, 80), 0);
        assert_eq!(excess(85, 100, 85, 80), 5);
        assert_eq!(excess(100, 100, 100, 80), 0);
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let known = ImageUse::default();
        let image = |id: &str| ImageSummary {
            id: id.to_owned(),
            ..ImageSummary::default()
        };
        let all = || vec![image("a"), image("b"), image("c")];
        let ids = |unused: Vec<(ImageSummary, Seen)>| -> Vec<String> {
            unused.into_iter().map(|(image, _)| image.id).collect()
        };
        let used = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<HashSet<_>>()
        };
        let begin = Instant::now();
        assert_eq!(ids(known.observe(all(), &used(&["a"]), begin)), ["b", "c"]);
        let later = begin + std::time::Duration::from_secs(1);
        assert_eq!(ids(known.observe(all(), &used(&["b"]), later)), ["c", "a"]);
        let last = later + std::time::Duration::from_secs(1);
        assert_eq!(ids(known.observe(all(), &used(&[]), last)), ["c", "a", "b"]);
    }
}
