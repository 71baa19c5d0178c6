//! Whose turn it is when something has to be reclaimed, and what is said about it.

use std::fmt::Write as _;

use pulselet_plan::duties::PressureSignal;

use super::pressure::Reclaim;

/// What a pod uses and what it has asked for of the resource that is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender<K> {
    pub(crate) pod: K,
    pub(crate) priority: i32,
    pub(crate) used: u64,
    pub(crate) requested: u64,
    pub(crate) containers: Vec<ContainerShare>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerShare {
    pub(crate) name: String,
    pub(crate) used: u64,
    pub(crate) requested: u64,
}

/// The one that goes: first whoever uses more than it has asked for, among those whoever matters least, then whoever is
/// furthest above its request. Process ids are not requested, so there nobody exceeds anything. `None` if there is nobody.
pub(crate) fn first_to_go<K>(contenders: Vec<Contender<K>>, signal: PressureSignal) -> Option<Contender<K>> {
    let counts_requests = match signal {
        PressureSignal::MemoryAvailable | PressureSignal::NodeFsAvailable => true,
        PressureSignal::NodeFsInodesFree | PressureSignal::PidAvailable => false,
    };
    contenders.into_iter().min_by_key(|contender| {
        let exceeds = counts_requests && contender.used > contender.requested;
        let above = i128::from(contender.used) - i128::from(contender.requested);
        (!exceeds, contender.priority, -above)
    })
}

/// Why a pod was evicted, in a kubelet's words.
pub(crate) fn message<K>(reclaim: &Reclaim, contender: &Contender<K>) -> String {
    let resource = reclaim.signal.resource();
    let is_bytes = match reclaim.signal {
        PressureSignal::MemoryAvailable | PressureSignal::NodeFsAvailable => true,
        PressureSignal::NodeFsInodesFree | PressureSignal::PidAvailable => false,
    };
    let quantity = |amount: u64| {
        if is_bytes {
            binary(amount)
        } else {
            amount.to_string()
        }
    };
    let mut text = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        quantity(reclaim.floor),
        quantity(reclaim.available),
    );
    for container in contender
        .containers
        .iter()
        .filter(|it| is_bytes && it.used > it.requested)
    {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
            container.name,
            quantity(container.used),
            quantity(container.requested),
        );
    }
    text
}

/// With the largest suffix that leaves a whole number.
fn binary(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut amount = bytes;
    let mut place = 0;
    while amount > 0 && amount.is_multiple_of(1024) && place + 1 < suffixes.len() {
        amount /= 1024;
        place += 1;
    }
    format!("{amount}{}", suffixes[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn contender(pod: &'static str, priority: i32, used: u64, requested: u64) -> Contender<&'static str> {
        let share = ContainerShare {
            name: "app".to_owned(),
            used,
            requested,
        };
        Contender {
            pod,
            priority,
            used,
            requested,
            containers: vec![share],
        }
    }

    fn first(all: &[Contender<&'static str>], signal: PressureSignal) -> &'static str {
        first_to_go(all.to_vec(), signal).expect("somebody").pod
    }

    #[test]
    fn exceeding_counts_before_priority_and_priority_before_use() {
        let modest = contender("modest", 0, 50, 60);
        let important = contender("important", 10, 90, 10);
        let greedy = contender("greedy", 5, 30, 20);
        let greedier = contender("greedier", 5, 31, 20);
        let memory = PressureSignal::MemoryAvailable;
        assert_eq!(first(&[modest.clone(), important.clone()], memory), "important");
        assert_eq!(first(&[important.clone(), greedy.clone()], memory), "greedy");
        assert_eq!(first(&[greedy.clone(), greedier], memory), "greedier");
        assert_eq!(first(&[modest, greedy], PressureSignal::PidAvailable), "modest");
        assert_eq!(first_to_go::<()>(Vec::new(), memory), None);
    }

    #[test]
    fn the_message_is_a_kubelets() {
        let reclaim = Reclaim {
            signal: PressureSignal::MemoryAvailable,
            floor: 100 * MIB,
            available: 50 * 1024 * 3,
            grace: None,
        };
        assert_eq!(
            message(&reclaim, &contender("web", 0, 200 * MIB, 0)),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 150Ki. Container app was using \
             200Mi, request is 0, has larger consumption of memory. "
        );
        let pids = Reclaim {
            signal: PressureSignal::PidAvailable,
            floor: 2048,
            available: 7,
            ..reclaim
        };
        assert_eq!(
            message(&pids, &contender("web", 0, 1, 0)),
            "The node was low on resource: pids. Threshold quantity: 2048, available: 7. "
        );
    }
}
