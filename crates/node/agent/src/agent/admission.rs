//! Whether the node has room for a pod, and the strength to run it.
//!
//! The pods of an API are counted as a kubelet counts them. Those of files and of `run` are their owner's decision: they
//! are never refused for what others use, but what they request is gone for the others.

use pulselet_engine::line::Phase;
use pulselet_model::{Pod, ResourceTotals, Shortage, qos_class};
use pulselet_plan::{PodBlueprint, PodRefusal, RefusalReason, out_of};

use super::Agent;
use super::duties::is_critical;
use crate::pod::identity::Origin;

/// The taint that a node gets from its cluster while it has too little memory.
const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

impl Agent {
    /// Why a node that runs out of something takes no more of such pods; `None` if it does.
    pub(super) fn lack_of_strength(&self, pod: &Pod, origin: &Origin) -> Option<PodRefusal> {
        let conditions = self.conditions();
        let names = conditions.names();
        if names.is_empty() || is_critical(pod.spec.priority.unwrap_or(0), origin, true) {
            return None;
        }
        let only_memory = conditions.memory && names.len() == 1;
        if only_memory && (qos_class(&pod.spec) != "BestEffort" || tolerates_memory_pressure(pod)) {
            return None;
        }
        Some(PodRefusal {
            reason: RefusalReason::Evicted,
            field: "spec".to_owned(),
            message: format!("The node had condition: [{}]. ", names.join(" ")),
        })
    }

    /// Why there is no room; `None` if there is.
    pub(super) fn lack_of_room(&self, blueprint: &PodBlueprint, origin: &Origin) -> Option<PodRefusal> {
        if !origin.is_api() {
            return None;
        }
        let (pods, used) = self.taken();
        let most = u64::from(self.config.duties.max_pods);
        if pods >= most {
            return Some(out_of(&Shortage {
                resource: "pods".to_owned(),
                requested: 1,
                used: pods,
                capacity: most,
            }));
        }
        let shortage = blueprint.requests.shortage(&used, &self.jobs.facts.allocatable)?;
        Some(out_of(&shortage))
    }

    /// How many pods have not ended, and what they request together.
    pub(super) fn taken(&self) -> (u64, ResourceTotals) {
        let (mut pods, mut used) = (0, ResourceTotals::default());
        for (key, entry) in &self.entries {
            let phase = self.pods.get(*key).map(pulselet_engine::PodMachine::phase);
            match phase {
                Some(Phase::Pending | Phase::Running) => {
                    pods += 1;
                    used.add(&entry.blueprint.requests);
                }
                Some(Phase::Succeeded | Phase::Failed) | None => {}
            }
        }
        (pods, used)
    }
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    pod.spec.tolerations.iter().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let exists = toleration.operator.as_deref() == Some("Exists");
        let no_value = toleration.value.as_deref().unwrap_or_default().is_empty();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let same_key = (key.is_empty() && exists) || (key == MEMORY_TAINT && (exists || no_value));
        same_key && (effect.is_empty() || effect == "NoSchedule")
    })
}
