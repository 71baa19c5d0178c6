//! The table of the live view: a pure function of what is known, the time and the size of the terminal.

use jiff::Timestamp;
use pulselet_engine::plan::ProbeKind;
use pulselet_sim::timeline::ProbeResult;
use pulselet_sim::timeline::wording::style::{BOLD, DIM, GREEN, RED, RESET, YELLOW};

use super::state::{ContainerState, Life, PodState, Pods};

/// Rows that are always left to the log.
const ROWS_FOR_LOG: usize = 3;
const HEADINGS: [&str; 7] = ["POD", "CONTAINER", "PHASE", "STARTED", "READY", "RESTARTS", "AGE"];
const COLUMNS: usize = HEADINGS.len();
/// Between two columns.
const GAP: &str = "  ";

/// A cell: its text and how it is shown.
type Cell = (String, &'static str);

/// The rows of the table, the last a hint; none is wider than the terminal.
pub(super) fn render(
    pods: &Pods,
    ending: Option<&'static str>,
    now: Timestamp,
    (width, height): (u16, u16),
) -> Vec<String> {
    let (width, height) = (usize::from(width), usize::from(height));
    let containers: Vec<_> = pods
        .iter()
        .flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
        .collect();
    let room = height.saturating_sub(ROWS_FOR_LOG + 2).max(1);
    let rows: Vec<[Cell; COLUMNS]> = containers
        .iter()
        .take(room)
        .map(|(pod, it)| cells(pod, it, now))
        .collect();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].0.chars().count());
        cells.chain([HEADINGS[column].len()]).max().unwrap_or_default()
    });
    let heading = HEADINGS.map(|heading| (heading.to_owned(), BOLD));
    let mut table = vec![line(&heading, &widths, width, vec![("PROBES".to_owned(), BOLD)])];
    let left = width.saturating_sub(widths.iter().map(|width| width + GAP.len()).sum());
    for (row, (_, container)) in rows.iter().zip(&containers) {
        table.push(line(row, &widths, width, strips(container, left)));
    }
    table.push(footer(containers.len().saturating_sub(room), ending, width));
    table
}

fn cells(pod: &PodState, container: &ContainerState, now: Timestamp) -> [Cell; COLUMNS] {
    let (phase, shown) = phase(container, now);
    let yes = |is: bool| {
        if is {
            ("yes".to_owned(), GREEN)
        } else {
            ("no".to_owned(), YELLOW)
        }
    };
    let since = match container.life {
        Life::Running { since } | Life::Stopping { since, .. } => Some(since),
        Life::Waiting | Life::Created | Life::Exited { .. } | Life::BackingOff { .. } => None,
    };
    let restarts = if container.restarts == 0 { "" } else { YELLOW };
    [
        (pod.name.to_string(), ""),
        (container.name.to_string(), ""),
        (phase, shown),
        yes(container.started),
        yes(container.ready),
        (container.restarts.to_string(), restarts),
        (since.map_or("-".to_owned(), |since| age(seconds(since, now))), ""),
    ]
}

fn phase(container: &ContainerState, now: Timestamp) -> Cell {
    match container.life {
        Life::Waiting => ("waiting".to_owned(), DIM),
        Life::Created => ("created".to_owned(), DIM),
        Life::Running { .. } => ("running".to_owned(), GREEN),
        Life::Stopping { until, .. } => (format!("stopping, {}s left", seconds(now, until)), RED),
        Life::Exited { code: 0 } => ("completed".to_owned(), DIM),
        Life::Exited { code } => (format!("exited {code}"), RED),
        Life::BackingOff { until } => (format!("back-off {}s", seconds(now, until)), YELLOW),
    }
}

/// The last results of each probe the container has shown, `|` for a success. They share the room there is.
fn strips(container: &ContainerState, room: usize) -> Vec<Cell> {
    let shown = |kind: &ProbeKind| container.strip(*kind).next().is_some();
    let kinds: Vec<ProbeKind> = ProbeKind::ALL.into_iter().filter(shown).collect();
    let names: usize = kinds.iter().map(|kind| kind.as_str().len() + 1 + GAP.len()).sum();
    let each = room
        .saturating_sub(names)
        .checked_div(kinds.len())
        .unwrap_or_default();
    let mut cells = Vec::new();
    for kind in kinds {
        let old = container.strip(kind).count().saturating_sub(each.max(1));
        cells.push((format!("{} ", kind.as_str()), DIM));
        cells.extend(container.strip(kind).skip(old).map(mark));
        cells.push((GAP.to_owned(), ""));
    }
    cells
}

fn mark(result: ProbeResult) -> Cell {
    let (mark, style) = match result {
        ProbeResult::Success => ("|", GREEN),
        ProbeResult::Failure => ("x", RED),
        ProbeResult::Look => (".", YELLOW),
        ProbeResult::Warning => ("!", YELLOW),
        ProbeResult::Error => ("?", YELLOW),
    };
    (mark.to_owned(), style)
}

fn footer(hidden: usize, ending: Option<&'static str>, width: usize) -> String {
    let hint = ending.unwrap_or("Ctrl-C stops the pods");
    let text = match hidden {
        0 => hint.to_owned(),
        hidden => format!("and {hidden} more; {hint}"),
    };
    let style = if ending.is_some() { YELLOW } else { DIM };
    clip(vec![(text, style)], width)
}

/// Cells in their columns, then what follows them, cut to the width of the terminal.
fn line(cells: &[Cell; COLUMNS], widths: &[usize; COLUMNS], width: usize, rest: Vec<Cell>) -> String {
    let padded = cells
        .iter()
        .zip(widths)
        .map(|((text, style), &width)| (format!("{text:width$}{GAP}"), *style));
    clip(padded.chain(rest), width)
}

fn clip(cells: impl IntoIterator<Item = Cell>, width: usize) -> String {
    let mut left = width;
    let mut out = String::new();
    for (text, style) in cells {
        if left == 0 {
            break;
        }
        let shown: String = text.chars().take(left).collect();
        left -= shown.chars().count();
        if style.is_empty() {
            out.push_str(&shown);
        } else {
            out.extend([style, &shown, RESET]);
        }
    }
    out
}

/// Whole seconds from one moment to a later one.
fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond());
    millis.max(0) / 1_000
}

/// An age as `kubectl` shows it, in two units at most.
pub(crate) fn age(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..172_800 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        172_800.. => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{play, pods, probe};
    use super::*;
    use pulselet_engine::line::{GraceFrom, KillReason, LineBody, LineOutcome};
    use pulselet_engine::time::Span;

    fn plain(pods: &Pods, ending: Option<&'static str>, second: i64, size: (u16, u16)) -> Vec<String> {
        let now = Timestamp::from_second(second).unwrap();
        let lines = render(pods, ending, now, size);
        lines
            .iter()
            .map(|line| {
                anstream::adapter::strip_str(line)
                    .to_string()
                    .trim_end()
                    .to_owned()
            })
            .collect()
    }

    fn two_pods() -> Pods {
        let mut pods = pods();
        let running = LineBody::Running {
            id: "c".into(),
            restart_count: 1,
        };
        play(
            &mut pods,
            [
                (true, running),
                (true, probe(ProbeKind::Liveness, LineOutcome::Success, 1)),
                (true, probe(ProbeKind::Liveness, LineOutcome::Failure, 1)),
                (true, probe(ProbeKind::Readiness, LineOutcome::Warning, 1)),
                (true, LineBody::Started),
            ],
        );
        pods
    }

    #[test]
    fn a_container_has_a_line_with_its_probes() {
        assert_eq!(
            plain(&two_pods(), None, 65, (120, 24)),
            [
                "POD          CONTAINER  PHASE    STARTED  READY  RESTARTS  AGE  PROBES",
                "default/web  app        running  yes      no     1         65s  liveness |x  readiness !",
                "Ctrl-C stops the pods",
            ]
        );
    }

    #[test]
    fn a_kill_shows_its_countdown() {
        let mut pods = two_pods();
        let killing = LineBody::Killing {
            reason: KillReason::Deleted,
            grace_period_seconds: Span::from_secs(30),
            grace_from: GraceFrom::Deletion,
        };
        play(&mut pods, [(true, killing)]);
        let table = plain(&pods, Some("again kills"), 12, (120, 24));
        assert!(table[1].contains("stopping, 18s left"), "{table:?}");
        assert_eq!(table[2], "again kills");
    }

    #[test]
    fn probes_share_what_room_there_is_and_show_their_newest_results() {
        let mut pods = two_pods();
        for _ in 0..20 {
            play(
                &mut pods,
                [(true, probe(ProbeKind::Liveness, LineOutcome::Success, 1))],
            );
        }
        play(
            &mut pods,
            [(true, probe(ProbeKind::Liveness, LineOutcome::Failure, 1))],
        );
        let table = plain(&pods, None, 65, (98, 24));
        assert!(table[1].ends_with("liveness ||||x  readiness !"), "{table:?}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [1, 10, 33, 70] {
            for line in plain(&two_pods(), None, 65, (width, 24)) {
                assert!(line.chars().count() <= usize::from(width), "{line:?}");
            }
        }
    }

    #[test]
    fn ages_have_two_units_at_most() {
        let ages = [0, 119, 120, 3_599, 3_600, 172_799, 172_800].map(age);
        assert_eq!(
            ages,
            ["0s", "119s", "2m00s", "59m59s", "1h00m", "47h59m", "2d00h"]
        );
    }
}
