//! "Did you mean": the known field nearest to an unknown one.

/// Longer names are not compared: they are no typing mistake, and the comparison is quadratic.
const MAX_NAME_BYTES: usize = 64;

/// The candidate that differs least from `name`, if it differs little enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let allowed = (name.len() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_NAME_BYTES)
        .map(|candidate| {
            (
                distance(&name.to_ascii_lowercase(), &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap of neighbours) from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, &a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &b) in to.iter().enumerate() {
            let replace = last[j] + usize::from(a != b);
            let mut best = replace.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a == to[j - 1] && from[i - 1] == b {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_near_miss_and_nothing_far() {
        let fields = ["periodSeconds", "timeoutSeconds", "failureThreshold", "exec"];
        assert_eq!(nearest("periodSecond", fields), Some("periodSeconds"));
        assert_eq!(nearest("failureTreshold", fields), Some("failureThreshold"));
        assert_eq!(nearest("PeriodSeconds", fields), Some("periodSeconds"));
        assert_eq!(nearest("exce", fields), Some("exec"));
        assert_eq!(nearest("graceperiod", fields), None);
        assert_eq!(nearest(&"x".repeat(1000), fields), None);
    }
}
