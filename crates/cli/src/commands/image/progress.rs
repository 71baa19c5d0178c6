//! How a pull goes on: bars on a terminal, a line for each step elsewhere. All of it goes to stderr.

use std::collections::HashMap;
use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use pulselet_image::{Digest, LayerStep, Progress, PullEvent};

use crate::output;

const BAR: &str = "{prefix} {bar:30} {binary_bytes:>10}/{binary_total_bytes:10} {msg}";
const PLAIN: &str = "{prefix} {msg}";
/// Digits of a digest that tell layers apart.
const DIGITS: usize = 12;
/// How often bars are drawn again while nothing happens.
const TICK: Duration = Duration::from_millis(200);

/// Ends the showing.
pub(super) struct Shown(Option<MultiProgress>);

impl Shown {
    /// Takes the bars away; what follows says how it ended.
    pub(super) fn finish(self) {
        if let Some(bars) = self.0 {
            // A terminal that is gone has no bars either.
            let _ = bars.clear();
        }
    }
}

pub(super) fn start() -> (Progress, Shown) {
    if !stderr().is_terminal() {
        return (Arc::new(|event| lines(&event)), Shown(None));
    }
    let bars = MultiProgress::new();
    let layers = Mutex::new(HashMap::new());
    let shown = bars.clone();
    let progress = move |event| {
        let PullEvent::Layer { digest, step } = event else {
            return;
        };
        // A bar that panicked is no reason not to draw the others.
        let mut layers = layers.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = layers.entry(digest).or_insert_with(|| bars.add(new_bar(digest)));
        draw(bar, step);
    };
    (Arc::new(progress), Shown(Some(shown)))
}

fn new_bar(digest: Digest) -> ProgressBar {
    let bar = ProgressBar::new(0)
        .with_style(style(PLAIN))
        .with_prefix(short(digest));
    bar.enable_steady_tick(TICK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn draw(bar: &ProgressBar, step: LayerStep) {
    match step {
        LayerStep::Exists => bar.finish_with_message("already here"),
        LayerStep::Waiting { total } => {
            bar.set_length(total);
            bar.set_message("waiting");
        }
        LayerStep::Downloading { done, .. } => {
            if bar.position() == 0 {
                bar.set_style(style(BAR));
            }
            bar.set_message("downloading");
            bar.set_position(done);
        }
        LayerStep::Interrupted { error } => bar.set_message(format!("trying again: {error}")),
        LayerStep::Unpacking => bar.set_message("unpacking"),
        LayerStep::Done => {
            bar.set_style(style(PLAIN));
            bar.finish_with_message("done");
        }
    }
}

fn lines(event: &PullEvent) {
    match event {
        PullEvent::Resolved { digest, layers } => output::note(&format!("{digest}, layers: {layers}")),
        PullEvent::Layer { digest, step } => {
            let what = match step {
                LayerStep::Exists => "already here".to_owned(),
                LayerStep::Waiting { total } => format!("{} to download", super::size(*total)),
                LayerStep::Downloading { .. } => return,
                LayerStep::Interrupted { error } => format!("trying again: {error}"),
                LayerStep::Unpacking => "unpacking".to_owned(),
                LayerStep::Done => "done".to_owned(),
            };
            output::note(&format!("{}: {what}", short(*digest)));
        }
    }
}

fn short(digest: Digest) -> String {
    digest.hex()[..DIGITS].to_owned()
}
