//! How much of a node a Pod asks for, as schedulers and nodes count it.
//!
//! The containers of a Pod run together, its init containers one after the other beside the sidecars that were started
//! before them: the Pod needs the larger of the two, what it names for itself as a whole instead, and its overhead.
//! A quantity that cannot be read counts as nothing; admission has refused those.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::{Container, PodSpec};
use pulselet_schema::quantity::Amount;

const NANOS: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;

/// Amounts of every resource that somebody asks for or has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceTotals {
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub ephemeral_storage: u64,
    /// Huge pages in bytes and devices in pieces, by the resource's name.
    pub others: BTreeMap<String, u64>,
}

impl ResourceTotals {
    /// Reads a list as manifests and statuses have them.
    pub fn read(list: &BTreeMap<String, Quantity>) -> Self {
        let mut totals = Self::default();
        for (name, quantity) in list {
            totals.set(name, quantity);
        }
        totals
    }

    fn set(&mut self, name: &str, quantity: &Quantity) {
        let nanos = Amount::parse(&quantity.0).map_or(0, Amount::nanos).max(0);
        let in_units_of = |unit: i128| u64::try_from((nanos + unit - 1) / unit).unwrap_or(u64::MAX);
        match name {
            "cpu" => self.cpu_millis = in_units_of(NANOS_PER_MILLI),
            "memory" => self.memory = in_units_of(NANOS),
            "ephemeral-storage" => self.ephemeral_storage = in_units_of(NANOS),
            _ => {
                self.others.insert(name.to_owned(), in_units_of(NANOS));
            }
        }
    }

    pub fn add(&mut self, more: &Self) {
        self.merge(more, u64::saturating_add);
    }

    pub fn subtract(&mut self, less: &Self) {
        self.merge(less, u64::saturating_sub);
    }

    fn raise_to(&mut self, least: &Self) {
        self.merge(least, u64::max);
    }

    fn merge(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        self.cpu_millis = with(self.cpu_millis, other.cpu_millis);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.others {
            let own = self.others.entry(name.clone()).or_default();
            *own = with(*own, *amount);
        }
    }

    /// The first resource of which there is not enough left on a node that has `allocatable` when others use `used`.
    pub fn shortage(&self, used: &Self, allocatable: &Self) -> Option<Shortage> {
        let own = [
            ("cpu", self.cpu_millis, used.cpu_millis, allocatable.cpu_millis),
            ("memory", self.memory, used.memory, allocatable.memory),
            (
                "ephemeral-storage",
                self.ephemeral_storage,
                used.ephemeral_storage,
                allocatable.ephemeral_storage,
            ),
        ];
        let of = |list: &BTreeMap<String, u64>, name: &str| list.get(name).copied().unwrap_or(0);
        let others = self.others.iter().map(|(name, requested)| {
            let (used, capacity) = (of(&used.others, name), of(&allocatable.others, name));
            (name.as_str(), *requested, used, capacity)
        });
        own.into_iter()
            .chain(others)
            .find(|(_, requested, used, capacity)| {
                *requested > 0 && *requested > capacity.saturating_sub(*used)
            })
            .map(|(resource, requested, used, capacity)| Shortage {
                resource: resource.to_owned(),
                requested,
                used,
                capacity,
            })
    }
}

/// A resource of which a node has too little. CPU is in thousandths, everything else in bytes or pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: u64,
    pub used: u64,
    pub capacity: u64,
}

/// What a Pod requests of its node.
pub fn pod_requests(spec: &PodSpec) -> ResourceTotals {
    with_pod_level(spec, |resources| resources.requests.as_ref())
}

/// What a Pod may use at most of what has a limit.
pub fn pod_limits(spec: &PodSpec) -> ResourceTotals {
    with_pod_level(spec, |resources| resources.limits.as_ref())
}

type Side = fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>;

fn with_pod_level(spec: &PodSpec, side: Side) -> ResourceTotals {
    let mut totals = of_containers(spec, side);
    for (name, quantity) in spec.resources.as_ref().and_then(side).into_iter().flatten() {
        totals.set(name, quantity);
    }
    totals.add(&ResourceTotals::read(&spec.overhead));
    totals
}

fn of_containers(spec: &PodSpec, side: Side) -> ResourceTotals {
    let of = |container: &Container| {
        side(&container.resources)
            .map(ResourceTotals::read)
            .unwrap_or_default()
    };
    let mut together = ResourceTotals::default();
    for container in &spec.containers {
        together.add(&of(container));
    }
    let (mut sidecars, mut most) = (ResourceTotals::default(), ResourceTotals::default());
    for container in &spec.init_containers {
        let own = of(container);
        if container.is_sidecar() {
            together.add(&own);
            sidecars.add(&own);
            most.raise_to(&sidecars);
        } else {
            let mut at_once = own;
            at_once.add(&sidecars);
            most.raise_to(&at_once);
        }
    }
    together.raise_to(&most);
    together
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).expect("a spec")
    }

    fn container(name: &str, cpu: &str, memory: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut sidecar = container("sidecar", cpu, memory);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    }

    #[test]
    fn init_containers_count_with_the_sidecars_before_them() {
        let totals = pod_requests(&spec(json!({
            "initContainers": [container("first", "2", "1Mi"), sidecar("100m", "2Mi"), container("second", "1950m", "1Mi")],
            "containers": [container("a", "500m", "10Mi"), container("b", "1m", "20Mi")],
            "overhead": {"cpu": "10m", "memory": "1Mi"},
        })));
        assert_eq!(totals.cpu_millis, 2050 + 10);
        assert_eq!(totals.memory, (10 + 20 + 2 + 1) << 20);
    }

    #[test]
    fn what_a_pod_names_for_itself_wins_and_gets_the_overhead_too() {
        let totals = pod_requests(&spec(json!({
            "containers": [container("a", "500m", "10Mi")],
            "resources": {"requests": {"cpu": "1"}},
            "overhead": {"cpu": "1m"},
        })));
        assert_eq!((totals.cpu_millis, totals.memory), (1001, 10 << 20));
    }

    #[test]
    fn the_first_shortage_is_named_with_its_numbers() {
        let node = ResourceTotals {
            cpu_millis: 2000,
            memory: 100,
            ..ResourceTotals::default()
        };
        let wants = |requests: Value| {
            let containers = json!([{"name": "a", "resources": {"requests": requests}}]);
            pod_requests(&spec(json!({"containers": containers})))
        };
        let used = wants(json!({"cpu": "1500m", "memory": "100"}));
        assert_eq!(wants(json!({"cpu": "500m"})).shortage(&used, &node), None);
        assert_eq!(
            wants(json!({"cpu": "600m", "memory": "1"})).shortage(&used, &node),
            Some(Shortage {
                resource: "cpu".to_owned(),
                requested: 600,
                used: 1500,
                capacity: 2000
            })
        );
        let device = wants(json!({"example.com/gpu": "1"})).shortage(&used, &node);
        assert_eq!(
            device.map(|shortage| shortage.resource).as_deref(),
            Some("example.com/gpu")
        );
        assert_eq!(
            wants(json!({"example.com/gpu": "0"})).shortage(&used, &node),
            None
        );
    }
}
